// Package localpg starts real Postgres servers as ordinary child processes: for
// tests, the demo, benchmarks and developers. Nothing is installed and no
// container engine is needed.
//
// The binaries are found on the machine (see [FindBinaries]) or, when there are
// none, downloaded once. Root is no hindrance: the server then runs as the user
// postgres or nobody.
//
// A [Server] can be restarted, killed, frozen and woken, and a standby made
// with [StartStandby] can be cut off and promoted, so that a failover which
// loses acknowledged transactions is a few lines:
//
//	standby, _ := localpg.StartStandby(ctx, primary, localpg.Config{})
//	_ = standby.WaitCaughtUp(ctx, primary)
//	_ = standby.Disconnect(ctx)
//	// what commits on primary from here on is lost
//	_ = primary.Kill(ctx)
//	_ = standby.Promote(ctx)
//
// Servers listen on 127.0.0.1 and on a socket in their own directory. Without a
// Config.Password every user of this machine may connect as superuser.
//
// A server and its directory go away with [Server.Stop], and also when the
// parent is killed; package localproc tells how.
package localpg
