package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// binary builds the command once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cq-e2e-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "claimq")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/claimq").CombinedOutput(); err != nil {
		return "", errors.Join(err, fmt.Errorf("build the command: %s", out))
	}
	return path, nil
})

var binaryDir string

func removeBinary() {
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir)
	}
}
