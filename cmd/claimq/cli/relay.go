package cli

import "github.com/spf13/cobra"

func newRelayCommand(env *Env) *cobra.Command {
	var flags runFlags
	flags.relayOnly = true
	command := &cobra.Command{
		Use:   "relay",
		Short: "Publish the outbox, and run no queues",
		Long: `Runs the relay of the outbox in a process of its own, for applications that add
effects by themselves, or to keep publishing apart from queues. It needs database,
kafka and, for several processes that share the work, relay.slices; relay.enabled and
queues do not matter to it. Any number may run, beside "claimq run" too: each slice
of the outbox is published by one of them, and taken over when that one is gone.

It serves /metrics, /livez and /readyz and ends on signals as "claimq run" does.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			config.Relay.Enabled = true
			r, err := newRunner(env, config, flags)
			if err != nil {
				return err
			}
			return r.run(cmd.Context())
		},
	}
	command.Flags().BoolVar(&flags.migrate, "migrate", false, "apply missing migrations first")
	return command
}
