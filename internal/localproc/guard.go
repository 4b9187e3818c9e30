package localproc

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
)

// guardScript ends the guarded process, and removes its directory, once the
// parent is gone. Each input line is a command; "release" makes the guard leave
// without touching anything.
//
//	pid N    N is the process to end; 0 when there is none
//	keep     the directory stays
//	release  exit now
//
// A frozen process is woken first, so that it can shut down by itself and free
// its shared memory; one that does not within eight seconds is killed.
const guardScript = `
dir=$1; signal=$2; pid=0
trap '' INT TERM HUP QUIT
while read -r word arg; do
	case $word in
	pid) pid=$arg ;;
	keep) dir= ;;
	release) exit 0 ;;
	esac
done
if [ "$pid" -gt 1 ]; then
	kill "-$signal" "$pid" 2>/dev/null
	kill -CONT "$pid" 2>/dev/null
	tries=0
	while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 80 ]; do
		# A zombie that a container's init does not reap has ended.
		case $(cat "/proc/$pid/stat" 2>/dev/null) in *") Z "*) break ;; esac
		sleep 0.1
		tries=$((tries + 1))
	done
	kill -KILL "$pid" 2>/dev/null
fi
if [ -n "$dir" ]; then rm -rf -- "$dir"; fi
`

// Guard ends one server, and removes its directory, when the process that made
// the guard ends without doing so itself. It guards one process at a time; a
// restarted server takes the place of the earlier one. It is safe for
// concurrent use.
//
// Between the fork of a server and the moment the guard knows its number
// there are some microseconds; a parent that is killed in them leaves the
// server behind.
type Guard struct {
	mu   sync.Mutex
	pipe *os.File // write end, close-on-exec: no other child keeps it open
	cmd  *exec.Cmd
}

// NewGuard starts a guard. When the parent dies it sends signal to the watched
// process, waits, kills, and removes dir with all in it; an empty dir removes
// nothing.
func NewGuard(dir string, signal syscall.Signal) (*Guard, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	cmd := exec.Command("/bin/sh", "-c", guardScript, "claimq-guard", dir, strconv.Itoa(int(signal)))
	cmd.Stdin = read
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = read.Close()
	if err != nil {
		_ = write.Close()
		return nil, fmt.Errorf("guard: start /bin/sh: %w", err)
	}
	return &Guard{pipe: write, cmd: cmd}, nil
}

// Watch names the process to end; zero for none.
func (g *Guard) Watch(pid int) error { return g.tell("pid " + strconv.Itoa(pid)) }

// KeepDir makes the guard leave the directory where it is.
func (g *Guard) KeepDir() error { return g.tell("keep") }

// Release ends the guard without any effect on process and directory. It may
// be called twice.
func (g *Guard) Release() error {
	if g == nil {
		return nil
	}
	if err := g.tell("release"); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe == nil {
		return nil
	}
	_ = g.pipe.Close()
	g.pipe = nil
	return g.cmd.Wait()
}

func (g *Guard) tell(line string) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pipe == nil {
		return nil
	}
	if _, err := g.pipe.WriteString(line + "\n"); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	return nil
}
