package localkafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/claimq/claimq/deploy/kafka"
	"github.com/claimq/claimq/internal/localproc"
)

// JarsVariable names the environment variable that says where Kafka's jars
// are; nothing is fetched then.
const JarsVariable = "CLAIMQ_TEST_KAFKA_HOME"

// MinimumJava is the oldest Java that Kafka's brokers run on.
const MinimumJava = 17

// ErrNoJava and ErrNoMaven are returned, wrapped with what to install, when
// Kafka cannot be started or fetched on this machine.
var (
	ErrNoJava  = errors.New("no Java found")
	ErrNoMaven = errors.New("no Maven found")
)

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// FindJava returns the java command, from JAVA_HOME or PATH. The error wraps
// [ErrNoJava] when there is none that is new enough.
func FindJava(ctx context.Context) (string, error) {
	const install = "install Java 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME"
	java := filepath.Join(os.Getenv("JAVA_HOME"), "bin", "java")
	if os.Getenv("JAVA_HOME") == "" {
		found, err := exec.LookPath("java")
		if err != nil {
			return "", fmt.Errorf("%w: %s", ErrNoJava, install)
		}
		java = found
	}
	output, err := exec.CommandContext(ctx, java, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s -version: %w: %s", ErrNoJava, java, err, install)
	}
	match := javaVersion.FindSubmatch(output)
	if match == nil {
		return "", fmt.Errorf("%w: %s -version says %q: %s", ErrNoJava, java, output, install)
	}
	if major, err := strconv.Atoi(string(match[1])); err != nil || major < MinimumJava {
		return "", fmt.Errorf("%w that is new enough: %s is version %s: %s", ErrNoJava, java, match[1], install)
	}
	return java, nil
}

// Jars returns the directory of Kafka's jars: the one in CLAIMQ_TEST_KAFKA_HOME
// (or its subdirectory libs) when that is set, else one in the user's cache, to
// which mvn fetches them the first time. Two processes do that once.
func Jars(ctx context.Context, logf func(format string, args ...any)) (string, error) {
	if dir := os.Getenv(JarsVariable); dir != "" {
		for _, candidate := range []string{dir, filepath.Join(dir, "libs")} {
			if matches, _ := filepath.Glob(filepath.Join(candidate, "kafka_*.jar")); len(matches) > 0 {
				return candidate, nil
			}
		}
		return "", fmt.Errorf("%s=%s holds no kafka_*.jar, nor does its directory libs", JarsVariable, dir)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a place for Kafka's jars: %w; set HOME or %s", err, JarsVariable)
	}
	return fetchTo(ctx, filepath.Join(cache, "claimq", "kafka-"+kafka.Version), logf)
}

func fetchTo(ctx context.Context, dir string, logf func(string, ...any)) (string, error) {
	libs := filepath.Join(dir, "libs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a place for Kafka's jars: %w", err)
	}
	unlock, err := localproc.Lock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	// The directory appears under its name only when it is complete.
	if _, err := os.Stat(libs); err == nil {
		return libs, nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("%w, which fetches Kafka %s: install it (Debian, Ubuntu: apt-get install maven; macOS: brew install maven), or name a directory of Kafka's jars in %s", ErrNoMaven, kafka.Version, JarsVariable)
	}
	logf("fetching Kafka %s (once, about 60 MB) to %s", kafka.Version, libs)
	scratch, err := os.MkdirTemp(dir, "fetch-")
	if err != nil {
		return "", fmt.Errorf("fetch Kafka: %w", err)
	}
	defer os.RemoveAll(scratch)
	pom := filepath.Join(scratch, "pom.xml")
	if err := os.WriteFile(pom, kafka.POM, 0o644); err != nil {
		return "", fmt.Errorf("fetch Kafka: %w", err)
	}
	partial := filepath.Join(scratch, "libs")
	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "-f", pom,
		"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+partial)
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch Kafka with mvn: %w; it says:\n%s", err, output)
	}
	if err := os.Rename(partial, libs); err != nil {
		return "", fmt.Errorf("fetch Kafka: %w", err)
	}
	return libs, nil
}
