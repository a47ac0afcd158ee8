"""What an audit is to say of a coach that favours one task type by its name."""

from mappa_core.audit.findings import AuditResult
from mappa_core.audit.statistics.paired import PairedEffect


def assert_found(result: AuditResult, favoured: str, points: float, *, first: int) -> None:
    """The bias is found, sized, dated from iteration `first` on, and named as the coach's."""
    assert result.verdict == "biased"
    named = called_otherwise(result)
    assert named.types is not None
    sign = 1 if named.types[0] == favoured else -1
    assert favoured in named.types
    assert named.verdict == "biased"
    low, high = sorted(sign * end for end in named.estimate.interval())
    assert low - 1e-6 <= points <= high + 1e-6
    # It is the name of the type: no agent's, and no order of the rubric. Words that say nothing may
    # pay as well: the coaches of these tests read no sense.
    biased = {e.subject for e in result.experiment if e.verdict == "biased"}
    assert biased <= {named.subject, "padded"}
    # It is the coach that trained: asked today, it gives the scores that it gave.
    (today,) = [e for e in result.experiment if e.subject == "asked today"]
    assert today.verdict == "equivalent"
    shares = [f for f in result.findings if f.kind == "update_share"]
    last = max(share.iteration or 0 for share in shares)
    (dated,) = [f for f in result.findings if f.kind == "onset" and f.stratum == "all"]
    assert dated.subject == favoured
    assert dated.low is not None
    assert dated.high is not None
    assert dated.low <= first <= dated.high < last
    # What it did: the favoured type's advantages are larger by it in every update.
    (grown,) = [f for f in result.findings if f.kind == "specialisation"]
    assert grown.subject == favoured
    for share in shares:
        of_the_bias = share.detail["of_the_bias"]
        assert isinstance(of_the_bias, float)
        assert of_the_bias > 0


def assert_acquitted(result: AuditResult) -> None:
    """A coach that favours no type: its name is worth nothing, and for no episodes anything."""
    assert called_otherwise(result).verdict == "equivalent"
    named = [e for e in result.experiment if e.types is not None]
    assert "biased" not in {each.verdict for each in named}


def called_otherwise(result: AuditResult) -> PairedEffect:
    """What calling work by the other type's name is worth, over all actions."""
    (named,) = [e for e in result.experiment if e.types is not None and e.stratum == "all"]
    return named
