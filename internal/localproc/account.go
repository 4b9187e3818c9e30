package localproc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// Account is the operating system user that a server runs under. A nil
// *Account means the current user; all methods accept nil.
type Account struct {
	Name string
	UID  uint32
	GID  uint32
}

// ServiceAccount returns the account for servers that refuse root: nil when
// the current user is not root, else the user postgres when there is one, else
// nobody. The error says what to create when neither exists.
func ServiceAccount() (*Account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
		if errUID != nil || errGID != nil || uid == 0 {
			continue
		}
		return &Account{Name: name, UID: uint32(uid), GID: uint32(gid)}, nil
	}
	return nil, errors.New("running as root, but neither a user postgres nor a user nobody exists to run the server under; create one (useradd --system postgres)")
}

// SysProcAttr returns the attributes that start a child under the account and
// in a session of its own.
func (a *Account) SysProcAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.UID, Gid: a.GID}
	}
	return attr
}

// Own gives path and all below it to the account.
func (a *Account) Own(path string) error {
	if a == nil {
		return nil
	}
	return filepath.WalkDir(path, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(name, int(a.UID), int(a.GID)) //nolint:gosec // our own new directory, and the link itself at most
	})
}

// CanReach tells whether the account can enter every directory on the way to
// path; the error names the first one that it cannot. A server under another
// user than root cannot use a directory below root's home, for example.
func (a *Account) CanReach(path string) error {
	if a == nil {
		return nil
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for dir := filepath.Dir(absolute); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if !a.canEnter(info) {
			return fmt.Errorf("user %s cannot enter %s (mode %s), which is on the way to %s; choose another directory (TMPDIR) or open this one with chmod a+x", a.Name, dir, info.Mode().Perm(), absolute)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// canEnter applies the owner, group and other execute bits the way the kernel
// does: the first class that matches decides.
func (a *Account) canEnter(info fs.FileInfo) bool {
	mode := info.Mode().Perm()
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case ok && stat.Uid == a.UID:
		return mode&0o100 != 0
	case ok && stat.Gid == a.GID:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}
