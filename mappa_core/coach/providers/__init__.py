"""Coaches that are language models: one policy, one module per provider.

    case ─▶ coach ─▶ budget, rate limits, slots, retries ─▶ provider ─▶ reply ─▶ score | Unscored

A provider sends one request and names what went wrong; everything else is decided here, once.
"""
