"""Values of `errands` and `lookups`: made-up names, words and lines, split into a train and an eval side.

Every second value belongs to the eval side. Called by `errand_kinds`.
"""

from typing import Literal

Pool = Literal["stems", "folders", "words", "texts"]

_STEMS = """
agenda album ballot banner basket bicycle bookings boxes breakfast brochure budget calendar camera captions carpet
catalog census chapter chorus cinema clinic coffee columns concert contacts cottage coupons courses credits crew
curtain customs dairy dance debts delivery desserts diary dinner drafts drums duties editions elevator engine entries
errors events excursion exhibits expenses fabric factory favourites ferry festival fields finances fixtures flights
forecast fountain furniture gallery garage garden glossary goals grades greeting guests guitar harbour harvest
helmets hikes hobbies holiday homework hotels income inventory invites islands itinerary jackets journal kitchen
labels ladder laundry leaflet lectures lessons library linen lottery luggage lunch magazine mailing manual markets
meals medals members menu metrics minutes mirrors museum notices numbers oboe offers orchard orders outline oven
paint parcels parking passport patients payroll permits pets photos piano picnic plan players poems postage potions
prices prizes puzzle quilts quotes rainfall ranking recipes records refunds rehearsal rentals repairs reviews riddles
roster routes sailing salaries samples schedule school scores seating shifts shopping sketches slides songs speech
"""
_FOLDERS = """
alpha attic bakery barn basement bench bridge bureau cabin canteen cellar chapel closet corner corridor court desk
dock drawer east estate farm floor forum foyer gate hall hangar hill house hut inbox island kiosk lab lodge loft
lounge market meadow mill north office outbox pantry patio pier plaza porch port quarter shed shelf south stable
station studio terrace tower vault village ward west wharf wing yard
"""
_WORDS = """
acorn amber anchor apple badger balcony bamboo beetle biscuit blanket bottle bramble bronze bucket butter button
cactus candle canoe cedar cherry clover cobalt comet copper cotton cricket crimson daisy dolphin donkey dragon eagle
ember falcon feather fennel ferret flannel fossil garnet ginger glacier gravel hammer hazel heron hickory honey
indigo ivory jasmine jigsaw juniper kettle kitten lagoon lantern lavender lemon lilac lizard magnet maple marble
meteor mitten molasses mosaic mustard nectar needle nutmeg olive onyx orchid otter oyster paddle pebble pelican pepper
pigeon pillow pistachio plum poppy prairie quartz rabbit raven ribbon rocket saffron salmon sapphire scarf
shovel silver sparrow spruce squirrel sunset teapot thimble thunder timber topaz trumpet tulip turnip umbrella velvet
vessel violet walnut whistle willow window wizard yarrow zebra zephyr
"""
_TEXTS = """
call the roofer / water the ferns / bring two chairs / ask about the key / return the ladder / pick up the cake
send the form back / check the boiler / book a table / feed the neighbour's cat / clean the filter / buy more stamps
the lift is broken / the door sticks / parking is free today / the meeting moved / nobody is at home / the bus was late
lights stay on / the heating is off / the printer needs ink / the window leaks / the shop closes early / rain is likely
wear warm clothes / tell the driver / count the spoons / wash the blue car / sweep the stairs / lock the bicycle
measure the shelf / paint the fence / order fresh bread / thank the nurse / visit the dentist / renew the card
charge the phone / print the tickets / post the letter / fold the towels / mend the gate / move the piano
the train was full / tea is ready / the keys were found / the lamp flickers / the clock is slow / the dog is well
the soup was cold / the map is wrong / the road is closed / the plants look dry / the roof is done / the code changed
meet at the station / bring the red umbrella / try the other door / leave the parcel here / use the back entrance
keep this line / ring twice / switch off the fan / open the blinds / set the alarm / pack the tent / wake the children
peel the apples / carry the boxes down / test the smoke alarm / write to the landlord / collect the coats
cancel the taxi / change the towels / warm up the milk / fix the handle / empty the bins / iron the shirts
the choir sings tonight / the pool is open / the bridge is up / the hall is booked / the bill is paid / the tap drips
the milk went off / the team won again / the fridge hums / the stage is small / the guide was kind / the snow melts
"""


def _halves(values: list[str]) -> dict[Literal["train", "eval"], tuple[str, ...]]:
    return {"train": tuple(values[::2]), "eval": tuple(values[1::2])}


def _phrases(text: str) -> list[str]:
    return [phrase.strip() for line in text.strip().splitlines() for phrase in line.split("/") if phrase.strip()]


POOLS: dict[Pool, dict[Literal["train", "eval"], tuple[str, ...]]] = {
    "stems": _halves(_STEMS.split()),
    "folders": _halves(_FOLDERS.split()),
    "words": _halves(_WORDS.split()),
    "texts": _halves([phrase for phrase in _phrases(_TEXTS) if "'" not in phrase]),
}
