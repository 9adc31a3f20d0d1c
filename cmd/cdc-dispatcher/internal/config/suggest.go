package config

import "strings"

// nearest returns the candidate that was most likely meant by got, or "".
// Letter case, and '-' in place of '_', do not count as differences.
func nearest(got string, candidates []string) string {
	best, bestDistance := "", 0
	norm := fold(got)
	for _, c := range candidates {
		d := distance(norm, fold(c))
		// One slip in a short word, two in a longer one, three in a long one.
		if limit := 1 + min(len(c), len(norm))/5; d > min(limit, 3) {
			continue
		}
		if best == "" || d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

func fold(s string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s))
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours that turn a into b (restricted Damerau–Levenshtein).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before := make([]int, len(y)+1)
	last := make([]int, len(y)+1)
	row := make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(y)]
}
