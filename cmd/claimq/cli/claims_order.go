package cli

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/internal/pgtext"
)

// orderFlags are those of every command that changes what workers will do: who
// gives the order, and why. Both are kept in claimq.audit.
type orderFlags struct{ by, why string }

func (f *orderFlags) add(command *cobra.Command) {
	command.Flags().StringVar(&f.why, "why", "", "the `reason`, kept in the audit (required)")
	command.Flags().StringVar(&f.by, "by", "", "`who` gives the order (default CLAIMQ_OPERATOR, else user@host)")
}

// maxOrderText bounds what is kept of a name or a reason, in bytes.
const maxOrderText = 1000

// order returns who gives an order and why, or says which is missing.
func (e *Env) order(f orderFlags) (who, why string, err error) {
	if why = pgtext.Storable(strings.TrimSpace(f.why), maxOrderText); why == "" {
		return "", "", usageError(`--why is missing: say the reason, which is kept in the audit: --why "ticket 4711: …"`)
	}
	who = f.by
	if who == "" {
		who, _ = e.lookup("CLAIMQ_OPERATOR")
	}
	if who == "" {
		who = e.userAtHost()
	}
	if who = pgtext.Storable(strings.TrimSpace(who), maxOrderText); who == "" {
		return "", "", usageError("who gives the order is not known: say --by NAME or set CLAIMQ_OPERATOR")
	}
	return who, why, nil
}

// userAtHost is "" when the environment names no user, as in most containers.
func (e *Env) userAtHost() string {
	user, _ := e.lookup("USER")
	if user == "" {
		user, _ = e.lookup("LOGNAME")
	}
	if user == "" {
		return ""
	}
	if host, err := os.Hostname(); err == nil {
		return user + "@" + host
	}
	return user
}
