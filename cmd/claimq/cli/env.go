package cli

import (
	"io"
	"os"
	"strings"
	"time"
)

// Env is what a command knows of the world outside: a test gives its own. It
// serves one call of Run.
type Env struct {
	// Stdin is read by commands that take lists.
	Stdin io.Reader
	// Stdout takes what a command was asked for, Stderr everything else: errors, logs,
	// progress.
	Stdout, Stderr io.Writer
	// Environ returns the environment as os.Environ does: NAME=value.
	Environ func() []string
	// Now is the clock for what is shown to people. What is stored has the database's.
	Now func() time.Time
	// Signals asks a running command to stop: the first gracefully, the second at
	// once. Nil: SIGINT and SIGTERM of this process.
	Signals <-chan os.Signal

	flags   globalFlags
	started bool // the command's own work has begun: errors before are the caller's
}

// OSEnv is the environment of this process.
func OSEnv() Env {
	return Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ, Now: time.Now}
}

// lookup returns a variable of the environment. Of several settings the last
// counts, as for exec.
func (e *Env) lookup(name string) (value string, ok bool) {
	for _, setting := range e.Environ() {
		if rest, found := strings.CutPrefix(setting, name+"="); found {
			value, ok = rest, true
		}
	}
	return value, ok
}
