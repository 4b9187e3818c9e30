package cli

import (
	"encoding/json"
	"fmt"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVersionTellsTheSchemaItKnows(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	wantAll(t, env.mustRun("version"), "claimq ", fmt.Sprintf("schema version %d\n", known(t)), "go1.")
	var info versionInfo
	if err := json.Unmarshal([]byte(env.mustRun("version", "--json")), &info); err != nil {
		t.Fatal(err)
	}
	if info.Schema != known(t) || info.Go == "" {
		t.Errorf("%+v", info)
	}
}

func TestVersionReadsTheCommitFromTheBuild(t *testing.T) {
	t.Parallel()
	build := &debug.BuildInfo{
		Main: debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-01-31T00:00:00Z"},
		},
	}
	got, err := readVersion(build)
	if err != nil {
		t.Fatal(err)
	}
	want := got
	want.Version, want.Commit, want.Modified, want.Built = "v1.2.3", "abc", true, "2026-01-31T00:00:00Z"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, err := readVersion(nil); err != nil || got.Version != "(unknown)" {
		t.Errorf("without build information: %+v, %v", got, err)
	}
}
