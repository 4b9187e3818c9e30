package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/migrations"
)

// versionInfo is what a binary knows of itself.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	// Modified: the working tree had changes that are in no commit.
	Modified bool   `json:"modified,omitempty"`
	Built    string `json:"commit_time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	// Schema is the newest version of the database's schema that the binary knows.
	Schema int `json:"schema"`
}

func newVersionCommand(env *Env) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit and the schema version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			build, _ := debug.ReadBuildInfo() // nil outside modules
			info, err := readVersion(build)
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(info)
			}
			env.printf("claimq %s", info.Version)
			if info.Commit != "" {
				env.printf(", commit %s", info.Commit)
				if info.Modified {
					env.printf(" with changes")
				}
				env.printf(" of %s", info.Built)
			}
			env.printf("\nschema version %d\n%s %s\n", info.Schema, info.Go, info.Platform)
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

// readVersion reads what the Go tool has put into the binary; build may be nil.
func readVersion(build *debug.BuildInfo) (versionInfo, error) {
	steps, err := migrations.SQL(migrations.Options{})
	if err != nil {
		return versionInfo{}, err
	}
	info := versionInfo{
		Version:  "(unknown)",
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Schema:   len(steps),
	}
	if build == nil {
		return info, nil
	}
	if build.Main.Version != "" {
		info.Version = build.Main.Version
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.Commit = setting.Value
		case "vcs.modified":
			info.Modified = setting.Value == "true"
		case "vcs.time":
			info.Built = setting.Value
		}
	}
	return info, nil
}
