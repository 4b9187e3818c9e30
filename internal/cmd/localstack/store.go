package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/claimq/claimq/internal/localproc"
)

// record is what is remembered of a running server.
type record struct {
	// Address is how to connect: a URL, or brokers separated by commas.
	Address string `json:"address"`
	// Dir holds the server's files; stop removes it.
	Dir string `json:"dir"`
	// PIDs are the server's processes. A number alone may be another process by
	// now; the command line of the server's own mentions Dir.
	PIDs []int `json:"pids"`
}

// running tells whether any of the recorded processes still is the server.
func (r record) running() bool {
	for _, pid := range r.PIDs {
		if localproc.Alive(pid) && localproc.Mentions(pid, r.Dir) {
			return true
		}
	}
	return false
}

// store keeps one file for each server.
type store struct{ dir string }

func openStore() (store, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return store{}, fmt.Errorf("find a place to remember what runs: %w; set HOME", err)
	}
	dir := filepath.Join(cache, "claimq", "localstack")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return store{}, fmt.Errorf("make a place to remember what runs: %w", err)
	}
	return store{dir: dir}, nil
}

func (s store) file(name string) string { return filepath.Join(s.dir, name+".json") }

// load returns what is remembered of a server; ok is false when nothing is.
func (s store) load(name string) (r record, ok bool, err error) {
	text, err := os.ReadFile(s.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false, nil
	}
	if err != nil {
		return record{}, false, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, false, fmt.Errorf("%s is damaged: %w; remove it, and end the server by hand", s.file(name), err)
	}
	return r, true, nil
}

func (s store) save(name string, r record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(s.file(name), append(text, '\n'), 0o600)
}

func (s store) forget(name string) error {
	if err := os.Remove(s.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
