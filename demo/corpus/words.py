"""Word lists written for this project. Held-out words occur in no training text, so their spelling must be derived."""
# ruff: noqa: E501, SIM905  (lists of phrases read better with many to a line)

import random

WORDS = tuple(
    """
    cat dog bird fish horse cow sheep goat pig duck hen mouse rat lion tiger bear wolf fox deer rabbit monkey zebra snake
    frog bee ant spider whale shark eagle owl crow swan apple banana orange lemon grape peach pear plum cherry melon mango
    bread butter cheese milk egg sugar salt pepper rice soup salad pizza pasta cake cookie honey tea coffee juice water wine
    table chair bed lamp door window wall floor roof house garden kitchen room street road bridge river lake sea ocean
    mountain hill forest tree flower grass leaf stone sand rain snow wind storm cloud sun moon star sky night day morning
    evening week month year hour minute second spring summer autumn winter red blue green yellow black white brown pink
    purple gray silver gold head hand foot arm leg eye ear nose mouth hair face heart mother father sister brother baby
    child friend teacher doctor farmer baker driver singer writer painter king queen city town village school library
    market shop bank hotel station airport car bus train plane boat ship bike truck book paper pen pencil letter story
    song music game ball toy box bag hat coat shirt shoe sock dress ring clock phone computer camera radio knife fork
    spoon plate cup glass bottle key money coin picture world country island beach desert fire ice light shadow color
    sound voice word number question answer idea dream hope love peace happy sad big small fast slow hot cold new old good
    bad long short tall strong weak clean dirty easy hard early late full empty rich poor young quick quiet loud sweet
    walk run jump swim fly sing dance read write speak listen look see hear eat drink sleep play work help open close
    start stop buy sell give take make build cook wash cut pull push throw catch learn teach think know hello thanks
    please sorry yes welcome goodbye people language science history nature animal planet model token server gateway
    potato tomato carrot onion chicken turtle penguin dolphin camel donkey kitten puppy dragon castle prince wizard
    engine doctor nurse lawyer soldier sailor artist student office factory hospital church temple tower
    weather thunder rainbow sunset island valley canyon volcano guitar piano violin drum trumpet flute ticket basket
    blanket pillow mirror candle hammer ladder bucket butterfly elephant strawberry chocolate sandwich breakfast dinner
    """.split()
)

HELDOUT_WORDS = tuple(
    """
    giraffe lizard parrot hamster otter badger beaver salmon lobster walnut almond apricot coconut papaya radish turnip
    parsley vanilla biscuit pancake muffin noodle curtain carpet cabinet drawer cottage cabin tunnel harbor meadow pebble
    gravel breeze drizzle glacier lantern helmet jacket sweater slipper necklace bracelet saddle wagon scooter rocket
    satellite marble velvet copper carbon tailor butcher plumber pilot captain pirate hermit goblin
    """.split()
)

_ONSETS = "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr pl pr sh sl sm sn sp st str th tr".split()
_VOWELS = "a e i o u a e i o u ai ea ee ie oa oo ou".split()
_CODAS = "b ck d g k l ll m n nd ng nt p r rd rn rt s ss st t tt x y".split() + [""] * 12


def invent_word(rng: random.Random, num_syllables: int) -> str:
    """A pronounceable word that need not exist, so that the model learns to spell by pieces instead of by heart."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(num_syllables))
