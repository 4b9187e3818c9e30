// Package localproc runs servers (Postgres, Kafka, PgBouncer) as ordinary
// child processes of a test, a demo or a benchmark, and makes sure that none
// of them outlives it.
//
// Three things are harder than os/exec makes them look, and are solved here:
//
//   - A parent that is killed with SIGKILL runs no deferred function. Linux'
//     parent-death signal is no cure: it is bound to the operating system
//     thread that forked, which the Go runtime may end at any time, and it
//     removes no files. Each server therefore has a [Guard]: a small shell that
//     reads from a pipe whose other end only the parent holds. When the parent
//     is gone, however it went, the pipe ends and the guard stops the server
//     and removes its directory.
//   - Some servers refuse to run as root. [ServiceAccount] finds the user to
//     run them under.
//   - Faults have to be driven: [Process.Kill], [Process.Freeze] and
//     [Process.Thaw] act on the whole process tree.
//
// Servers run in a session of their own, so that a Ctrl-C in the terminal
// reaches the parent only, which can then stop them in order.
//
// The package needs a Unix (Linux, macOS, the BSDs).
package localproc
