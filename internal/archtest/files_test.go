package archtest

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// maxLines is how long a file may get before it holds two things.
const maxLines = 500

func TestFilesAreShort(t *testing.T) {
	t.Parallel()
	eachPackage(t, func(name string, p listed) (problems []string) {
		for _, file := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				problems = append(problems, err.Error())
				continue
			}
			if lines := bytes.Count(text, []byte("\n")); lines > maxLines {
				problems = append(problems, fmt.Sprintf("%s/%s has %d lines and %d are allowed: give its second subject a file of its own", name, file, lines, maxLines))
			}
		}
		return problems
	})
}

func TestPackagesAreNamedForWhatTheyHold(t *testing.T) {
	t.Parallel()
	meaningless := []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base"}
	eachPackage(t, func(name string, _ listed) []string {
		if slices.Contains(meaningless, path.Base(name)) {
			return []string{name + ": the name does not say what the package holds"}
		}
		return nil
	})
}
