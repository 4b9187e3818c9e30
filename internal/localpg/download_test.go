package localpg

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A download could not be interrupted: whoever pressed Ctrl-C in the first run of
// the demo waited for it, or killed it and left files behind. Not parallel: it has
// a directory for temporary files of its own.
func TestADownloadEndsWithItsContextAndLeavesNoTemporaryFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	asked, release := make(chan struct{}, 1), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	defer server.Close()
	defer close(release)
	stop := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cache := t.TempDir()
	ended := make(chan error, 1)
	go func() { ended <- fetch(ctx, server.URL, cache, filepath.Join(cache, "unpacked")) }()
	<-asked
	cancel(stop)
	select {
	case err := <-ended:
		if !errors.Is(err, stop) {
			t.Errorf("fetch says %v, want its context's cause", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the download goes on although its context has ended")
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestADownloadThatIsRefusedSaysSoAndLeavesNoTemporaryFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	cache := t.TempDir()
	if err := fetch(t.Context(), server.URL, cache, filepath.Join(cache, "unpacked")); err == nil {
		t.Error("a download of nothing is no error")
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// Whoever has the log open is another process here, as far as can be told.
func TestLogsOfOthersAreLeftAlone(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	name := filepath.Join(os.TempDir(), "embedded_postgres_log1")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removeLibraryLogs()
	if _, err := os.Stat(name); err != nil {
		t.Errorf("the log of another process is gone: %v", err)
	}
}
