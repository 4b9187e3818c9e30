// Package cli holds the commands of claimq. Run is the whole program; a test runs
// any command in its own process by giving it an Env.
//
// A command is a function newXCommand(env *Env) *cobra.Command in a file of its
// name, listed in commands. What they share:
//
//	config, err := env.load()                   // file, environment, flags
//	pool, err := env.openPool(ctx, config)      // connected, no hidden pooler, right schema version
//	options, err := env.kafkaOptions(config)    // brokers, TLS, SASL
//	logger, err := env.logger(config)           // on Stderr
//	env.printf, env.printTable, env.printJSON   // what was asked for, on Stdout
//	return exitWith(ExitNothing, err)           // an exit code of its own
//	return usageError("…")                      // a wrong command line
//
// Errors are returned and printed by Run, once.
package cli
