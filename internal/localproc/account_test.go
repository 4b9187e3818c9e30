package localproc

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestServiceAccountIsNeverRoot(t *testing.T) {
	t.Parallel()
	account, err := ServiceAccount()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case os.Geteuid() != 0 && account != nil:
		t.Errorf("not root, but servers are to run as %s", account.Name)
	case os.Geteuid() == 0 && (account == nil || account.UID == 0):
		t.Errorf("root, and servers are to run as %v", account)
	}
	var current *Account
	if attr := current.SysProcAttr(); attr.Credential != nil || !attr.Setsid {
		t.Errorf("the current user's attributes are %+v", attr)
	}
	if err := current.Own("/does/not/exist"); err != nil {
		t.Errorf("the current user has nothing to own: %v", err)
	}
	if err := current.CanReach("/does/not/exist"); err != nil {
		t.Errorf("the current user's reach is not checked: %v", err)
	}
}

func TestCanReachNamesTheDirectoryThatIsClosed(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "cq-reach-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(root, "closed")
	if err := os.MkdirAll(filepath.Join(closed, "inner"), 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := &Account{Name: "stranger", UID: 54321, GID: 54321}
	if err := stranger.CanReach(closed); err != nil {
		t.Errorf("all above the closed directory is open: %v", err)
	}
	err = stranger.CanReach(filepath.Join(closed, "inner"))
	if err == nil || !strings.Contains(err.Error(), closed) || !strings.Contains(err.Error(), "stranger") {
		t.Errorf("the error does not name user and directory: %v", err)
	}
}

func TestCanEnterFollowsTheFirstClassThatMatches(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no owner is known")
	}
	owner := &Account{UID: stat.Uid, GID: stat.Gid + 1}
	group := &Account{UID: stat.Uid + 1, GID: stat.Gid}
	other := &Account{UID: stat.Uid + 1, GID: stat.Gid + 1}
	for mode, want := range map[os.FileMode][3]bool{
		0o700: {true, false, false}, 0o010: {false, true, false}, 0o001: {false, false, true}, 0o755: {true, true, true},
	} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]bool{owner.canEnter(info), group.canEnter(info), other.canEnter(info)}; got != want {
			t.Errorf("mode %o: owner, group and others may enter: %v, want %v", mode, got, want)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}
