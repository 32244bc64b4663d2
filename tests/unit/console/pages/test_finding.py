"""What somebody types finds pages and acts in the order of how well they match."""

from console.pages.finding import Hit, best

HITS = [
    Hit("Quota requests", "/q/", "Tenants"),
    Hit("Live", "/live/", "Now"),
    Hit("Prices", "/p/", "Tenants"),
    Hit("New price of a model", "/n/"),
    Hit("Deliveries", "/d/"),
    Hit("Tenants", "/t/", "Tenants"),
]


def found(text: str, most: int = 9) -> list[str]:
    return [one.label for one in best(HITS, text, most)]


def test_a_beginning_is_before_a_word_before_a_part_before_the_note():
    assert found("live") == ["Live", "Deliveries"]
    assert found("PRICE") == ["Prices", "New price of a model"]
    assert found("tenants") == ["Tenants", "Quota requests", "Prices"]


def test_every_word_must_match_somewhere_in_any_order():
    assert found("model price") == ["New price of a model"]
    assert found("tenants quota") == ["Quota requests"]
    assert found("price forecast") == []


def test_at_most_as_many_as_asked():
    assert found("e", most=2) == ["Quota requests", "Live"]
