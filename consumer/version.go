package consumer

import "runtime/debug"

// version is claimq's module version as built into the program, or "devel".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if info.Main.Path == "github.com/claimq/claimq" {
		return info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == "github.com/claimq/claimq" {
			return dep.Version
		}
	}
	return "devel"
}
