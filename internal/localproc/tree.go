package localproc

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Alive tells whether a process runs. A zombie does not.
func Alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	entry, ok := readStat(pid)
	return !ok || entry.state != "Z"
}

// Mentions tells whether a process runs whose command line holds text. It tells
// a server that was started earlier from another process that has its number
// now.
func Mentions(pid int, text string) bool {
	if line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); err == nil {
		return strings.Contains(string(line), text)
	}
	line, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(line), text)
}

// descendants lists all processes below pid, nearest first.
func descendants(pid int) []int {
	children := make(map[int][]int)
	for _, entry := range processes() {
		children[entry.parent] = append(children[entry.parent], entry.pid)
	}
	var found []int
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		found = append(found, children[queue[0]]...)
		queue = append(queue, children[queue[0]]...)
	}
	return found
}

type processEntry struct {
	pid, parent int
	state       string
}

// processes lists what runs: from /proc where there is one, else from ps.
func processes() []processEntry {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	if len(stats) == 0 {
		return processesFromPS()
	}
	entries := make([]processEntry, 0, len(stats))
	for _, name := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			continue
		}
		if entry, ok := readStat(pid); ok {
			entries = append(entries, entry)
		}
	}
	return entries
}

// readStat reads state and parent of a process. The command name in the second
// field may hold blanks and brackets, so the fields are counted from its last
// closing bracket (proc(5)).
func readStat(pid int) (processEntry, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return processEntry{}, false
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return processEntry{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return processEntry{pid: pid, parent: parent, state: fields[0]}, err == nil
}

func processesFromPS() []processEntry {
	output, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil
	}
	var entries []processEntry
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		pid, errPID := strconv.Atoi(fields[0])
		parent, errParent := strconv.Atoi(fields[1])
		if errPID == nil && errParent == nil {
			entries = append(entries, processEntry{pid: pid, parent: parent, state: fields[2][:1]})
		}
	}
	return entries
}
