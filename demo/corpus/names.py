"""People, places and things that occur in other skills. Draw.entity holds out one in ten."""

from demo.corpus.items import Draw
from demo.corpus.words import invent_word

# ruff: noqa: E501, SIM905  (lists of phrases read better with many to a line)

NAMES = tuple(
    """
    Anna Ben Clara David Emma Felix Grace Henry Ivan Julia Karl Laura Maria Noah Olivia Paul Quinn Rosa Simon Tara Uma
    Victor Wendy Xavier Yara Zoe Adam Bella Carlos Diana Eric Fiona George Hannah Ian Jane Kevin Lily Max Nina Oscar Petra
    Robert Sarah Tom Ursula Vera William Alice Bruno Chloe Daniel Elena Frank Gina Hugo Irene Jack Kate Leo Mia Nathan Omar
    Peter Rachel Sam Theo Vivian Walter Amir Bianca Cesar Dora Edgar Flora Gustav Helen Igor Jonas Klara Lucas Martha Nora
    Otto Pia Ralph Sofia Tim Viola Yusuf Zara Aisha Boris Carmen Derek Esther Fred Gloria Hector Iris Joel Kira Louis Megan
    """.split()
)
CITIES = tuple(
    """
    Paris Berlin Rome Madrid Lisbon London Dublin Vienna Oslo Athens Prague Warsaw Tokyo Cairo Lima Boston Chicago Denver
    Seattle Dallas Miami Austin Toronto Montreal Sydney Melbourne Munich Hamburg Milan Venice Naples Lyon Geneva Zurich
    Barcelona Porto Delhi Mumbai Seoul Manila Nairobi Quito Havana Phoenix Houston Atlanta Leeds Bristol Glasgow Cologne
    """.split()
)
MONTHS = "January February March April May June July August September October November December".split()
THINGS = (
    "book", "chair", "lamp", "table", "phone", "camera", "bike", "jacket", "hat", "guitar", "clock", "mirror", "bag", "watch", "ticket",
    "pen", "cup", "sofa", "desk", "ring", "coat", "shirt", "tent", "radio", "drum", "blanket", "basket", "knife", "vase", "carpet",
)  # fmt: skip
FOODS = (
    "pizza",
    "soup",
    "rice",
    "pasta",
    "salad",
    "bread",
    "cheese",
    "apples",
    "cake",
    "honey",
    "fish",
    "eggs",
    "noodles",
    "curry",
    "ice cream",
)
COLORS = ("red", "blue", "green", "yellow", "black", "white", "brown", "pink", "purple", "orange", "gray", "silver")
PETS = ("dog", "cat", "horse", "rabbit", "parrot", "hamster", "turtle", "goldfish")
JOBS = (
    "teacher",
    "doctor",
    "baker",
    "driver",
    "singer",
    "writer",
    "painter",
    "lawyer",
    "nurse",
    "farmer",
    "pilot",
    "cook",
    "engineer",
    "student",
)


def draw_name(draw: Draw) -> str:
    """A person's name. In training two in five are invented, so that the model learns to copy names."""
    if not draw.is_heldout and draw.chance(0.4):
        return invent_word(draw.rng, draw.rng.randint(1, 3)).capitalize()
    return draw.entity(NAMES)
