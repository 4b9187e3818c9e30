package cli

import "github.com/spf13/cobra"

// commands returns every command of claimq. A command is made by a function
//
//	func newXCommand(env *Env) *cobra.Command
//
// which sets RunE and reads nothing of env before that runs: flags are not parsed
// yet. RunE returns an error and leaves it to Run to print it; exitWith sets a
// code. A command sets no PersistentPreRun.
func commands(env *Env) []*cobra.Command {
	return []*cobra.Command{
		newDemoCommand(env),
		newConfigCommand(env),
		newRunCommand(env),
		newRelayCommand(env),
		newMigrateCommand(env),
		newStatusCommand(env),
		newPositionCommand(env),
		newKeysCommand(env),
		newClaimsCommand(env),
		newOutboxCommand(env),
		newDLQCommand(env),
		newReplayCommand(env),
		newBenchCommand(env),
		newVersionCommand(env),
	}
}
