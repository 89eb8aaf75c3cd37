"""A pattern to build tasks from. For tests of environments and admission."""

from schemas.pattern import Bucket, CategoryCount, UsagePattern


def usage_pattern(length="medium", domain="data_analysis", errors=1) -> UsagePattern:
    calls = {"short": 2, "medium": 4, "long": 16}[length]
    one = [Bucket(low=4, count=5)]
    return UsagePattern(
        pattern_id=f"pattern_{length}_{domain}_{errors}",
        domain=domain,
        categories=[CategoryCount(category="shell", count=9)],
        transitions=[],
        turns=one,
        calls=[Bucket(low=calls, count=5)],
        tokens=[Bucket(low=1024, count=5)],
        errors=[Bucket(low=errors, count=5)],
        recoveries=[],
        agents_together=False,
        sessions=5,
        partners=3,
        support_hash="0" * 32,
    )
