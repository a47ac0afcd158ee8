"""Is the coach biased, since when, and what did it do to the policy?

reader ─▶ frame ─▶ statistics ─▶ findings ─▶ store, report       `mappa audit RUN`: run_audit
                                    ▲
anchors, running sums ─▶ watch ─────┘                            while a run trains: watch.monitor
exam, questions ─▶ coach ─▶ mark, probes                         before: `mappa audit --before`
simulation ─▶ selftest                                           how often the audit is wrong
"""
