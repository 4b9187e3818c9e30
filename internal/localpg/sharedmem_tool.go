//go:build !linux && !darwin

package localpg

import (
	"os/exec"
	"strconv"
)

// removeSegment marks the segment for removal once nobody is attached. That it
// is gone already is no error.
func removeSegment(id int) { _ = exec.Command("ipcrm", "-m", strconv.Itoa(id)).Run() }
