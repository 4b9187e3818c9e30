package localproc

import (
	"bytes"
	"io"
	"os"
)

// tailBytes bounds what an error message carries of a log.
const tailBytes = 8 << 10

// Tail returns up to lines last lines of a log, for an error message, or a
// note on why there are none.
func Tail(name string, lines int) string {
	file, err := os.Open(name)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tailBytes {
		_, _ = file.Seek(-tailBytes, io.SeekEnd)
	}
	text, err := io.ReadAll(io.LimitReader(file, tailBytes))
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	text = bytes.TrimRight(text, "\n")
	for start := len(text); lines > 0 && start >= 0; lines-- {
		start = bytes.LastIndexByte(text[:start], '\n')
		if lines == 1 || start < 0 {
			return string(text[start+1:])
		}
	}
	return string(text)
}
