package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/cdc-dispatcher/cdc-dispatcher/cmd/cdc-dispatcher/internal/config"
)

// checked is what "validate -o json" prints for one file.
type checked struct {
	File     string              `json:"file"`
	Valid    bool                `json:"valid"`
	Sources  int                 `json:"sources"`
	Handlers int                 `json:"handlers"`
	Problems []positionedProblem `json:"problems"`
}

// positionedProblem is a problem with its place as two numbers.
type positionedProblem struct {
	config.Problem
	Line   int `json:"line"`
	Column int `json:"column"`
}

func (a *app) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate [FILE…]",
		Short: "Check configuration files, all problems at once",
		Long: `Check configuration files the way "run" does: everything is built, nothing is connected.
Variables and files that the configuration refers to must be there.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{a.configPath()}
			}
			results := make([]checked, 0, len(args))
			valid := true
			for _, path := range args {
				result, err := a.validate(path)
				if err != nil {
					return err
				}
				valid = valid && result.Valid
				results = append(results, result)
			}
			if a.format == outputJSON {
				if err := a.json(results); err != nil {
					return err
				}
			}
			if !valid {
				return silent(exitConfig)
			}
			return nil
		},
	}
}

// validate checks one file and, in text form, says what it found.
func (a *app) validate(path string) (checked, error) {
	result := checked{File: path, Problems: []positionedProblem{}}
	cfg, err := a.load(path)
	if err == nil {
		err = a.tryOut(cfg)
	}
	var problems config.Problems
	switch {
	case err == nil:
		result.Valid, result.Sources, result.Handlers = true, len(cfg.Sources), len(cfg.Handlers)
		if a.format == outputText {
			a.say("%s is valid: %s, %s", path, count(len(cfg.Sources), "source"), count(len(cfg.Handlers), "handler"))
		}
	case !errors.As(err, &problems):
		return result, err
	default:
		if a.format == outputText {
			a.explain(problems)
		}
		for _, p := range problems {
			result.Problems = append(result.Problems, positionedProblem{p, p.Pos.Line, p.Pos.Column})
		}
	}
	return result, nil
}

// configExists says whether there is a configuration file.
func (a *app) configExists() bool {
	_, err := os.Stat(a.configPath())
	return err == nil
}
