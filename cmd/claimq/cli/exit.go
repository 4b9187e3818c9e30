package cli

import (
	"errors"
	"fmt"
)

// What claimq exits with.
const (
	// ExitOK: all that was asked for is done.
	ExitOK = 0
	// ExitFailed: it could not be done; the error says why.
	ExitFailed = 1
	// ExitPartial: some of it is done; what is not is named.
	ExitPartial = 2
	// ExitNothing: nothing matched what was asked for.
	ExitNothing = 3
	// ExitUsage: the command line is wrong; nothing was tried.
	ExitUsage = 64
	// ExitConfig: the configuration is refused; nothing was tried.
	ExitConfig = 78
)

// An exitError ends a command with a code of its own. A nil err says that the
// command has told everything already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exitWith makes a command end with a code: ExitPartial, ExitNothing. err may be
// nil when the output has said it all.
func exitWith(code int, err error) error { return &exitError{code: code, err: err} }

// usageError says that the command line is wrong, and what would be right.
func usageError(format string, args ...any) error {
	return exitWith(ExitUsage, fmt.Errorf(format, args...))
}

// configError says that the configuration is refused.
func configError(err error) error { return exitWith(ExitConfig, err) }

// exitCode returns the code for a command's error.
func exitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code
	}
	return ExitFailed
}
