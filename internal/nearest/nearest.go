// Package nearest finds what a person may have meant: the known name that is
// closest to a misspelt one.
package nearest

// maxCompared bounds the work for a text that is no name at all.
const maxCompared = 64

// Of returns the candidate with the smallest edit distance to text, the first of
// several, or "" when there is none.
func Of(text string, candidates []string) string {
	text = text[:min(len(text), maxCompared)]
	best, bestDistance := "", -1
	for _, candidate := range candidates {
		if d := distance(text, candidate); bestDistance < 0 || d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance is Levenshtein's, over bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
