// Package pgtest gives each test its own claimq schema in a real Postgres.
//
//	db := pgtest.New(t)
//	_, err := db.Pool.Exec(ctx, "insert into "+db.Schema+".orders …")
//
// The server is the one in CLAIMQ_TEST_DSN, which "make test" and
// internal/cmd/teststack start and set. Tests which must restart, kill or fail
// over a server take one of their own with [Server].
package pgtest
