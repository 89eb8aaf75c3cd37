"""What synthetic tables are about. Read by `tables`."""

from dataclasses import dataclass

from schemas.pattern import Domain


@dataclass(frozen=True)
class Theme:
    """One main table and the small table it refers to.

    Columns of the main table in order: id, date, label, group, ref, value. `decimals` of the value is 0 or 2.
    """

    table: str
    id: str
    prefix: str
    label: str
    labels: tuple[str, ...]
    group: str
    groups: tuple[str, ...]
    ref: str
    ref_prefix: str
    value: str
    low: int
    high: int
    decimals: int
    date: str
    dim: str
    attribute: str
    attributes: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """Columns of the main table."""
        return [self.id, self.date, self.label, self.group, self.ref, self.value]


THEMES = (
    Theme(
        "orders", "order_id", "OR-", "item",
        ("desk lamp", "Chair, oak", "standing desk", "Monitor arm", "cable box, black", "Footrest", "Shelf, 3 tiers"),
        "region", ("north", "south", "east", "west", "overseas"),
        "customer_id", "C", "amount", 12, 900, 2, "ordered_on",
        "customers", "city", ("Leeds", "Porto", "Gdansk", "Lyon", "Turin", "Ghent"),
    ),
    Theme(
        "tickets", "ticket_id", "T", "subject",
        ("Password reset", "Refund, second request", "login loop", "Invoice missing", "Slow export, again", "typo"),
        "team", ("billing", "accounts", "technical", "returns"),
        "agent_id", "A", "minutes", 3, 240, 0, "opened_on",
        "agents", "office", ("Cork", "Manila", "Austin", "Tallinn"),
    ),
    Theme(
        "readings", "reading_id", "R", "note",
        ("ok", "after restart", "low battery, replaced", "manual", "ok, recalibrated", "night run"),
        "site", ("harbour", "mill", "depot", "annex", "quarry"),
        "sensor_id", "S", "kwh", 5, 480, 2, "read_on",
        "sensors", "building", ("B1", "B2", "Hall", "Yard"),
    ),
    Theme(
        "expenses", "expense_id", "E", "purpose",
        ("Train ticket", "Hotel, two nights", "team lunch", "Books", "Taxi, late", "conference fee", "Printer paper"),
        "department", ("sales", "research", "legal", "support", "facilities"),
        "employee_id", "P", "cost", 8, 650, 2, "paid_on",
        "employees", "location", ("Bergen", "Delft", "Graz", "Malmo", "Brno"),
    ),
    Theme(
        "parcels", "parcel_id", "PX", "contents",
        ("spare parts", "Glass, fragile", "Textiles", "paint", "Books, used", "Machine oil"),
        "carrier", ("roadstar", "bluepost", "swift", "kargo"),
        "depot_id", "D", "weight_kg", 1, 95, 2, "sent_on",
        "depots", "country", ("PT", "PL", "FR", "IE", "AT"),
    ),
    Theme(
        "donations", "gift_id", "G", "campaign",
        ("Spring appeal", "Roof fund", "Run, 10 km", "legacy", "Dinner, autumn", "newsletter"),
        "channel", ("web", "post", "phone", "event"),
        "donor_id", "DN", "gift", 5, 400, 2, "given_on",
        "donors", "segment", ("new", "regular", "lapsed", "major"),
    ),
    Theme(
        "loans", "loan_id", "L", "title",
        ("Emma", "The Sea, the Sea", "Middlemarch", "Solaris", "Kokoro", "War and Peace, vol. 2", "Beloved"),
        "branch", ("central", "riverside", "hilltop", "market"),
        "member_id", "M", "days", 1, 63, 0, "lent_on",
        "members", "kind", ("adult", "student", "child", "staff"),
    ),
    Theme(
        "batches", "batch_id", "B", "part",
        ("bracket", "Hinge, left", "hinge, right", "Gear 12T", "bolt M6", "Cover, steel"),
        "line", ("alpha", "beta", "gamma", "delta"),
        "operator_id", "OP", "pieces", 40, 2200, 0, "made_on",
        "operators", "shift", ("early", "late", "night"),
    ),
)  # fmt: skip

_BY_DOMAIN: dict[Domain, tuple[str, ...]] = {
    "customer_support": ("tickets", "orders", "loans"),
    "operations": ("parcels", "readings", "batches"),
    "office": ("expenses", "loans", "donations"),
    "research": ("readings", "batches", "donations"),
}


def themes_for(domain: Domain) -> list[Theme]:
    """The themes near a domain of work; all of them where none is near."""
    near = _BY_DOMAIN.get(domain)
    return [theme for theme in THEMES if near is None or theme.table in near]
