//go:build linux || darwin

package localpg

import "golang.org/x/sys/unix"

// removeSegment marks the segment for removal once nobody is attached. That it
// is gone already is no error.
func removeSegment(id int) { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }
