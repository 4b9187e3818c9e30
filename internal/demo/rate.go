package demo

import "time"

// A rateMeter finds the busiest second.
type rateMeter struct {
	looks []rateLook
	most  float64
}

type rateLook struct {
	at   time.Time
	done int
}

// note takes a look; the rate is over the shortest span of looks of at least a
// second.
func (m *rateMeter) note(at time.Time, done int) {
	m.looks = append(m.looks, rateLook{at, done})
	for len(m.looks) > 2 && at.Sub(m.looks[1].at) >= time.Second {
		m.looks = m.looks[1:]
	}
	if span := at.Sub(m.looks[0].at); span >= time.Second {
		m.most = max(m.most, float64(done-m.looks[0].done)/span.Seconds())
	}
}

func (m *rateMeter) busiest() int { return int(m.most) }
