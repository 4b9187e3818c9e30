package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	yamlparser "github.com/knadh/koanf/parsers/yaml"
	envprovider "github.com/knadh/koanf/providers/env/v2"
	fileprovider "github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
)

// delimiter joins the parts of a path inside koanf. Names of queues hold dots, so
// it is a character that no name can have.
const delimiter = "\x1f"

// envPrefix begins the variables of the environment that are claimq's.
const envPrefix = "CLAIMQ_"

// shortVariables are those for the commands that people type. The long form of
// the same setting rules over them.
var shortVariables = map[string]string{
	"CLAIMQ_DSN":     "database" + delimiter + "dsn",
	"CLAIMQ_SCHEMA":  "database" + delimiter + "schema",
	"CLAIMQ_BROKERS": "kafka" + delimiter + "brokers",
}

// load reads the configuration: the file, over it the environment, over that the
// flags. All that is wrong is reported at once, each with its place, as an error
// that ends claimq with ExitConfig. No value of a secret is in any of them.
func (e *Env) load() (*Config, error) {
	config, err := e.readConfig()
	if err != nil {
		return nil, configError(err)
	}
	return config, nil
}

func (e *Env) readConfig() (*Config, error) {
	k := koanf.New(delimiter)
	config := defaultConfig()
	config.file = e.flags.config
	if config.file == "" {
		config.file, _ = e.lookup("CLAIMQ_CONFIG")
	}
	var problems []error
	if config.file != "" {
		parser := &fileParser{env: e, dir: filepath.Dir(config.file)}
		if err := k.Load(fileprovider.Provider(config.file), parser, koanf.WithMergeFunc(mergeLayer)); err != nil {
			return nil, e.fileError(config.file, err)
		}
		config.lines = parser.lines
		problems = append(problems, parser.problems...)
	}
	shorts := envprovider.Opt{Prefix: envPrefix, EnvironFunc: e.Environ, TransformFunc: func(name, value string) (string, any) {
		return shortVariables[name], envText(value)
	}}
	variables := envVariables{queues: k.MapKeys("queues")}
	longs := envprovider.Opt{Prefix: envPrefix, EnvironFunc: e.Environ, TransformFunc: variables.transform}
	for _, layer := range []envprovider.Opt{shorts, longs} {
		if err := k.Load(envprovider.Provider(delimiter, layer), nil, koanf.WithMergeFunc(mergeLayer)); err != nil {
			return nil, fmt.Errorf("read the environment: %w", err)
		}
	}
	problems = append(problems, variables.problems...)
	raw := k.Raw()
	problems = append(problems, unknownFields(nil, raw, reflect.TypeFor[Config]())...)
	if err := errors.Join(append(problems, decode(k, config)...)...); err != nil {
		return nil, placed(config, err)
	}
	e.flags.apply(config)
	return config, nil
}

func defaultConfig() *Config {
	return &Config{
		Kafka: KafkaConfig{ClientID: "claimq"},
		HTTP:  HTTPConfig{Listen: "127.0.0.1:9467"},
		Log:   LogConfig{Level: "info", Format: "text"},
		Relay: RelayConfig{Enabled: true, Slices: 1},
	}
}

// apply puts the flags over what the file and the environment say.
func (f *globalFlags) apply(c *Config) {
	if f.dsn != "" {
		c.Database.DSN, c.Database.DSNFile = Secret(f.dsn), ""
	}
	if f.schema != "" {
		c.Database.Schema = f.schema
	}
	if len(f.brokers) > 0 {
		c.Kafka.Brokers = f.brokers
	}
	if f.logLevel != "" {
		c.Log.Level = f.logLevel
	}
	if f.logFormat != "" {
		c.Log.Format = f.logFormat
	}
}

// mergeLayer puts src over dest. A setting and the file that it can be read from
// (dsn, dsn_file) are two ways to say one thing, so either takes the other's place.
func mergeLayer(src, dest map[string]any) error {
	for key, value := range src {
		below, isMap := dest[key].(map[string]any)
		above, overMap := value.(map[string]any)
		if isMap && overMap {
			if err := mergeLayer(above, below); err != nil {
				return err
			}
			continue
		}
		if _, both := src[key+"_file"]; !both {
			delete(dest, key+"_file")
		}
		if plain, isFile := strings.CutSuffix(key, "_file"); isFile {
			if _, both := src[plain]; !both {
				delete(dest, plain)
			}
		}
		dest[key] = value
	}
	return nil
}

func (e *Env) fileError(path string, err error) error {
	if pathError, ok := errors.AsType[*os.PathError](err); ok {
		return fmt.Errorf("configuration file %s: %w", path, pathError.Err)
	}
	return fmt.Errorf("configuration file %s: %w", path, err)
}

// fileParser is koanf's YAML parser with references filled in, and with the
// places of fields kept.
type fileParser struct {
	env      *Env
	dir      string
	lines    yamlLines
	problems []error
}

func (p *fileParser) Unmarshal(text []byte) (map[string]any, error) {
	values, err := yamlparser.Parser().Unmarshal(text)
	if err != nil {
		return nil, withoutValues(err)
	}
	p.lines = readLines(text)
	references := references{env: p.env, dir: p.dir}
	for key, value := range values {
		values[key] = references.expand([]string{key}, value)
	}
	p.problems = references.problems
	return values, nil
}

func (p *fileParser) Marshal(map[string]any) ([]byte, error) {
	return nil, errors.ErrUnsupported // koanf asks for it, claimq writes no configuration
}
