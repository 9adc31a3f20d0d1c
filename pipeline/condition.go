package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"

	"github.com/cdc-dispatcher/cdc-dispatcher/cdc"
)

// conditionCost bounds one evaluation, in CEL's own cost units (about one per
// operation and list element visited). It is far above any sensible condition and keeps
// a hostile payload from holding up fan-out: at the limit the evaluation is an error.
const conditionCost = 1_000_000

// ConditionError says where a condition does not compile.
type ConditionError struct {
	// Expr is the condition as it was written.
	Expr string
	// Line and Column count from 1; Column counts characters.
	Line, Column int
	// Message says what is wrong, and what to write instead where that is known.
	Message string
}

func (e *ConditionError) Error() string {
	return fmt.Sprintf("condition %d:%d: %s", e.Line, e.Column, e.Message)
}

// Snippet is the line at fault with a caret under the place.
func (e *ConditionError) Snippet() string {
	lines := strings.Split(e.Expr, "\n")
	if e.Line < 1 || e.Line > len(lines) {
		return ""
	}
	return lines[e.Line-1] + "\n" + strings.Repeat(" ", max(e.Column-1, 0)) + "^"
}

// condition is a compiled CEL expression. It is immutable and may be evaluated
// from several goroutines.
type condition struct {
	program cel.Program
	expr    string
	// payload says that the expression reads event.payload, so that an event
	// whose payload is missing or too large cannot be judged by it.
	payload bool
}

// compileEventCondition compiles a condition over `event`. The error is a
// [ConditionError].
func compileEventCondition(expr string) (*condition, error) {
	provider, err := types.NewRegistry()
	if err != nil {
		return nil, fmt.Errorf("prepare condition types: %w", err)
	}
	return compile(expr,
		cel.CustomTypeProvider(eventTypes{provider}),
		cel.CustomTypeAdapter(provider),
		cel.Variable("event", eventType))
}

// compileRecordCondition compiles a condition over `record`.
func compileRecordCondition(expr string) (*condition, error) {
	return compile(expr, cel.Variable("record", cel.MapType(cel.StringType, cel.DynType)))
}

func compile(expr string, options ...cel.EnvOption) (*condition, error) {
	env, err := cel.NewEnv(append(options,
		// `event.payload.total > 10` has to hold for 10.5 as well as for 11.
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(16<<10),
	)...)
	if err != nil {
		return nil, fmt.Errorf("prepare condition: %w", err)
	}
	tree, issues := env.Compile(expr)
	if issues.Err() != nil {
		return nil, firstIssue(expr, issues)
	}
	if out := tree.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, &ConditionError{Expr: expr, Line: 1, Column: 1,
			Message: fmt.Sprintf("a condition is true or false, this one is a %s; compare it with something", out)}
	}
	program, err := env.Program(tree, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(conditionCost))
	if err != nil {
		return nil, &ConditionError{Expr: expr, Line: 1, Column: 1, Message: err.Error()}
	}
	return &condition{program: program, expr: expr, payload: readsPayload(tree.NativeRep())}, nil
}

// firstIssue turns what the compiler found into one positioned error. Later
// findings are mostly consequences of the first.
func firstIssue(expr string, issues *cel.Issues) error {
	found := issues.Errors()
	if len(found) == 0 {
		return &ConditionError{Expr: expr, Line: 1, Column: 1, Message: issues.Err().Error()}
	}
	first := found[0]
	msg := first.Message
	if field, ok := strings.CutPrefix(msg, "undefined field '"); ok {
		msg = fmt.Sprintf("event has no field '%s; it has %s", field, strings.Join(eventFieldNames(), ", "))
	}
	return &ConditionError{Expr: expr, Line: max(first.Location.Line(), 1), Column: max(first.Location.Column(), 0) + 1, Message: msg}
}

// readsPayload says whether the tree needs event.payload: it selects the field,
// or it uses event as a whole.
func readsPayload(tree *ast.AST) bool {
	events := ast.MatchDescendants(ast.NavigateAST(tree), func(e ast.NavigableExpr) bool {
		return e.Kind() == ast.IdentKind && e.AsIdent() == "event"
	})
	return slices.ContainsFunc(events, func(e ast.NavigableExpr) bool {
		parent, ok := e.Parent()
		return !ok || parent.Kind() != ast.SelectKind || parent.AsSelect().FieldName() == "payload"
	})
}

// holdsFor evaluates the condition for an event. An error means that it has no
// answer, which is not the same as no; its text carries no value of the event (C70).
func (c *condition) holdsFor(v *eventView) (bool, error) { return c.eval(v) }

// holdsForRecord evaluates the condition for a row image.
func (c *condition) holdsForRecord(r cdc.Record) (bool, error) {
	return c.eval(map[string]any{"record": recordValues(r)})
}

func (c *condition) eval(vars any) (bool, error) {
	out, _, err := c.program.Eval(vars)
	if err != nil {
		return false, c.describe(err)
	}
	if holds, ok := out.Value().(bool); ok {
		return holds, nil
	}
	return false, fmt.Errorf("condition gave a %s instead of true or false", out.Type().TypeName())
}

// evaluationErrors are the beginnings of CEL's messages that are safe to repeat.
// The rest of a message may quote the data.
var evaluationErrors = [...]string{
	"no such key", "no such overload", "no such attribute", "no matching overload",
	"division by zero", "modulus by zero", "index out of bounds", "range error",
	"integer overflow", "unsigned integer overflow",
	"operation cancelled: actual cost limit exceeded", "type conversion error",
}

// describe keeps the kind of an evaluation error and drops what came from the data.
func (c *condition) describe(err error) error {
	var bad *viewError
	if errors.As(err, &bad) {
		return bad
	}
	msg := err.Error()
	for _, kind := range evaluationErrors {
		rest, ok := strings.CutPrefix(msg, kind)
		if !ok {
			continue
		}
		// A key is named when the expression names it: then it is not data.
		if key := strings.Trim(rest, ": '\""); kind == "no such key" && key != "" && strings.Contains(c.expr, key) {
			return fmt.Errorf("condition: no such key: %s", key)
		}
		return errors.New("condition: " + kind)
	}
	return errors.New("condition: evaluation failed")
}

// recordValues makes the variable `record`: the columns by name in the text
// form of the database, null as null. Columns that the log did not carry are absent.
func recordValues(r cdc.Record) map[string]any {
	values := make(map[string]any, len(r.Values))
	for i, v := range r.Values {
		switch {
		case i >= len(r.Relation.Columns) || v.Unchanged:
		case v.Null:
			values[r.Relation.Columns[i].Name] = nil
		default:
			values[r.Relation.Columns[i].Name] = string(v.Data)
		}
	}
	return values
}
