package localpg

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// removeSharedMemory frees the System V segment of a server that was killed.
// An ordered shutdown frees it itself and removes postmaster.pid, whose seventh
// line holds the segment's key and number; the next server on the same data
// would free it too, but a data directory that is being removed has none.
func removeSharedMemory(dataDir string) {
	text, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	fields := strings.Fields(lines[6])
	if len(fields) != 2 {
		return
	}
	if id, err := strconv.Atoi(fields[1]); err == nil {
		removeSegment(id)
	}
}
