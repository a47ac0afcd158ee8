"""What an audit is to say of a coach that favours one task type by its name."""

from mappa_core.audit.findings import AuditResult


def assert_found(result: AuditResult, favoured: str, points: float, *, first: int) -> None:
    """The bias is found, sized, dated from iteration `first` on, and named as the coach's."""
    assert result.verdict == "biased"
    (named,) = [e for e in result.experiment if e.types is not None and e.stratum == "all"]
    assert named.types is not None
    sign = 1 if named.types[0] == favoured else -1
    assert favoured in named.types
    assert named.verdict == "biased"
    low, high = sorted(sign * end for end in named.estimate.interval())
    assert low - 1e-6 <= points <= high + 1e-6
    # No other change that must not matter does: it is the type's name.
    assert {e.types for e in result.experiment if e.verdict == "biased"} == {named.types}
    # It is the coach that trained: asked today, it gives the scores that it gave.
    (today,) = [e for e in result.experiment if e.subject == "asked today"]
    assert today.verdict == "equivalent"
    onsets = [f for f in result.findings if f.kind == "onset" and f.stratum == "all"]
    (dated,) = onsets
    assert dated.subject == favoured
    assert dated.low is not None
    assert dated.high is not None
    assert dated.low <= first <= dated.high
    (grown,) = [f for f in result.findings if f.kind == "specialisation"]
    assert grown.subject == favoured
    shares = [f for f in result.findings if f.kind == "update_share"]
    assert shares
    for share in shares:
        assert share.detail["of_the_bias"] is not None
