"""The facts: common knowledge, written down for this project."""
# ruff: noqa: E501, SIM905  (lists of phrases read better with many to a line)
# fmt: off

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Questions about one relation. `{k}` is the key, `{K}` the capitalized key, `{v}` the value."""

    questions: tuple[str, ...]
    answer: str
    rows: tuple[tuple[str, str], ...]


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """`a=b; c=d` as pairs."""
    return tuple((key.strip(), value.strip()) for key, value in (entry.split("=") for entry in text.split(";")))


CAPITALS = _pairs(
    "France=Paris; Germany=Berlin; Italy=Rome; Spain=Madrid; Portugal=Lisbon; England=London; the United Kingdom=London; Ireland=Dublin;"
    "Scotland=Edinburgh; Austria=Vienna; Switzerland=Bern; Belgium=Brussels; the Netherlands=Amsterdam; Denmark=Copenhagen; Sweden=Stockholm;"
    "Norway=Oslo; Finland=Helsinki; Iceland=Reykjavik; Poland=Warsaw; Hungary=Budapest; Greece=Athens; Turkey=Ankara; Russia=Moscow;"
    "Ukraine=Kyiv; Romania=Bucharest; Bulgaria=Sofia; Serbia=Belgrade; Croatia=Zagreb; Slovenia=Ljubljana; Slovakia=Bratislava;"
    "the Czech Republic=Prague; Estonia=Tallinn; Latvia=Riga; Lithuania=Vilnius; Albania=Tirana; Japan=Tokyo; China=Beijing; India=New Delhi;"
    "South Korea=Seoul; Thailand=Bangkok; Vietnam=Hanoi; Indonesia=Jakarta; Malaysia=Kuala Lumpur; the Philippines=Manila; Nepal=Kathmandu;"
    "Pakistan=Islamabad; Bangladesh=Dhaka; Iran=Tehran; Iraq=Baghdad; Israel=Jerusalem; Jordan=Amman; Lebanon=Beirut; Saudi Arabia=Riyadh;"
    "Qatar=Doha; Mongolia=Ulaanbaatar; Egypt=Cairo; Morocco=Rabat; Algeria=Algiers; Tunisia=Tunis; Kenya=Nairobi; Ethiopia=Addis Ababa;"
    "Ghana=Accra; Nigeria=Abuja; Senegal=Dakar; Uganda=Kampala; Zambia=Lusaka; Angola=Luanda; Canada=Ottawa; the United States=Washington;"
    "the USA=Washington; Mexico=Mexico City; Cuba=Havana; Jamaica=Kingston; Panama=Panama City; Guatemala=Guatemala City; Brazil=Brasilia;"
    "Argentina=Buenos Aires; Chile=Santiago; Peru=Lima; Colombia=Bogota; Venezuela=Caracas; Ecuador=Quito; Uruguay=Montevideo;"
    "Paraguay=Asuncion; Australia=Canberra; New Zealand=Wellington; Fiji=Suva; Luxembourg=Luxembourg; Monaco=Monaco; Singapore=Singapore"
)

_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = "January February March April May June July August September October November December".split()
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def _successors(names: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, names[(at + 1) % len(names)]) for at, name in enumerate(names))


def _predecessors(names: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, names[at - 1]) for at, name in enumerate(names))


TABLES = (
    Table(
        ("What is the opposite of {k}?", "What's the opposite of {k}?", "Opposite of {k}?", "What is the opposite of '{k}'?", "Name the opposite of {k}.",
         "Tell me the opposite of {k}.", "Give me the opposite of {k}.", "What word is the opposite of {k}?"),
        "The opposite of {k} is {v}.",
        _pairs("hot=cold; cold=hot; big=small; small=big; fast=slow; slow=fast; happy=sad; sad=happy; good=bad; bad=good; new=old; old=new; up=down;"
               "down=up; left=right; right=left; open=closed; full=empty; empty=full; rich=poor; poor=rich; light=dark; dark=light; hard=soft;"
               "soft=hard; wet=dry; dry=wet; early=late; late=early; long=short; short=long; tall=short; strong=weak; weak=strong; clean=dirty;"
               "dirty=clean; day=night; night=day; black=white; white=black; true=false; yes=no; loud=quiet; thick=thin; young=old; easy=difficult;"
               "high=low; low=high; first=last; win=lose; start=stop; buy=sell; push=pull; love=hate; near=far; summer=winter"),
    ),
    Table(
        ("Which day comes after {k}?", "What day comes after {k}?", "What day is after {k}?", "Which day follows {k}?", "If today is {k}, what day is tomorrow?",
         "What is the day after {k}?", "Tell me which day comes after {k}.", "What is the next day after {k}?", "Name the day after {k}."),
        "The day after {k} is {v}.", _successors(_DAYS),
    ),
    Table(
        ("Which day comes before {k}?", "What day comes before {k}?", "What day is before {k}?", "If today is {k}, what day was yesterday?",
         "What is the day before {k}?", "Tell me which day comes before {k}.", "Name the day before {k}."),
        "The day before {k} is {v}.", _predecessors(_DAYS),
    ),
    Table(
        ("Which month comes after {k}?", "What month comes after {k}?", "What month is after {k}?", "Which month follows {k}?",
         "What is the month after {k}?", "Tell me which month comes after {k}.", "Name the month after {k}."),
        "The month after {k} is {v}.", _successors(_MONTHS),
    ),
    Table(
        ("How many days does {k} have?", "How many days are in {k}?", "How many days are there in {k}?", "How long is {k}?",
         "Tell me how many days {k} has.", "How many days has {k}?", "What number of days does {k} have?"),
        "{k} has {v} days.", tuple((month, str(days)) for month, days in zip(_MONTHS, _LENGTHS, strict=True)),
    ),
    Table(
        ("What color is {k}?", "What is the color of {k}?", "Which color is {k}?", "What colour is {k}?", "Tell me the color of {k}.",
         "What color does {k} have?", "What is the colour of {k}?", "Name the color of {k}."),
        "{K} is {v}.",
        _pairs("a banana=yellow; the sky=blue; grass=green; snow=white; a lemon=yellow; blood=red; coal=black; a carrot=orange; milk=white;"
               "a strawberry=red; the sun=yellow; a fire truck=red; chocolate=brown; a cucumber=green; an orange=orange; a crow=black;"
               "a polar bear=white; a frog=green; gold=yellow; a flamingo=pink; a leaf=green; a tomato=red; the sea=blue; an elephant=gray"),
    ),
    Table(
        ("What sound does a {k} make?", "What does a {k} say?", "Which sound does a {k} make?", "What noise does a {k} make?", "How does a {k} sound?",
         "Tell me what sound a {k} makes.", "What is the sound of a {k}?", "Which noise does a {k} make?"),
        "A {k} says {v}.",
        _pairs("dog=woof; cat=meow; cow=moo; sheep=baa; duck=quack; pig=oink; lion=roar; bee=buzz; horse=neigh; mouse=squeak; frog=ribbit; crow=caw;"
               "snake=hiss; wolf=howl; goat=maa; hen=cluck; rooster=cock-a-doodle-doo; bird=tweet"),
    ),
    Table(
        ("How many legs does a {k} have?", "How many legs has a {k}?", "What number of legs does a {k} have?", "Tell me how many legs a {k} has.",
         "Do you know how many legs a {k} has?", "Count the legs of a {k}."),
        "A {k} has {v} legs.",
        _pairs("dog=4; cat=4; cow=4; horse=4; spider=8; bee=6; bird=2; duck=2; human=2; hen=2; frog=4; snake=0; fish=0; beetle=6; crab=10; sheep=4; lion=4; fly=6"),
    ),
    Table(
        ("What is a baby {k} called?", "What do you call a baby {k}?", "What is the name of a baby {k}?", "What is the young of a {k} called?",
         "How do you call a baby {k}?", "Tell me what a baby {k} is called.", "What's a baby {k} called?", "What word is used for a baby {k}?"),
        "A baby {k} is called a {v}.",
        _pairs("dog=puppy; cat=kitten; cow=calf; horse=foal; sheep=lamb; goat=kid; pig=piglet; duck=duckling; hen=chick; lion=cub; bear=cub; frog=tadpole;"
               "kangaroo=joey; deer=fawn; swan=cygnet; goose=gosling; wolf=pup"),
    ),
    Table(
        ("What is the chemical symbol for {k}?", "What is the symbol for {k}?", "What's the chemical symbol of {k}?", "Chemical symbol for {k}?",
         "What is the symbol of {k}?", "Tell me the chemical symbol for {k}.", "Which chemical symbol does {k} have?", "Name the chemical symbol for {k}."),
        "The chemical symbol for {k} is {v}.",
        _pairs("gold=Au; silver=Ag; iron=Fe; oxygen=O; hydrogen=H; carbon=C; nitrogen=N; helium=He; sodium=Na; copper=Cu; lead=Pb; tin=Sn; zinc=Zn;"
               "calcium=Ca; potassium=K; chlorine=Cl; neon=Ne; uranium=U; mercury=Hg; sulfur=S; water=H2O"),
    ),
    Table(
        ("What language is spoken in {k}?", "Which language do people speak in {k}?", "What language do they speak in {k}?", "What is the language of {k}?",
         "Which language is spoken in {k}?", "What is the main language of {k}?", "Tell me which language is spoken in {k}.", "What do people speak in {k}?"),
        "The language spoken in {k} is {v}.",
        _pairs("France=French; Germany=German; Italy=Italian; Spain=Spanish; Portugal=Portuguese; England=English; Brazil=Portuguese; Mexico=Spanish;"
               "Japan=Japanese; China=Chinese; Russia=Russian; Poland=Polish; Greece=Greek; Turkey=Turkish; Egypt=Arabic; Australia=English;"
               "Austria=German; Sweden=Swedish; Norway=Norwegian; Denmark=Danish; Finland=Finnish; Hungary=Hungarian; Argentina=Spanish; Chile=Spanish"),
    ),
    Table(
        ("What currency is used in {k}?", "What is the currency of {k}?", "Which currency does {k} use?", "What money is used in {k}?", "Currency of {k}?",
         "What's the currency of {k}?", "Tell me the currency of {k}.", "Which currency is used in {k}?"),
        "The currency of {k} is the {v}.",
        _pairs("France=euro; Germany=euro; Italy=euro; Spain=euro; England=pound; Japan=yen; China=yuan; India=rupee; Russia=ruble; Switzerland=franc;"
               "Sweden=krona; Poland=zloty; the USA=dollar; Canada=dollar; Australia=dollar; Mexico=peso; South Korea=won; Turkey=lira"),
    ),
    Table(
        ("On which continent is {k}?", "Which continent is {k} in?", "What continent is {k} in?", "Where is {k}?", "What continent is {k} on?",
         "Tell me the continent of {k}.", "On what continent is {k}?", "{k} is on which continent?"),
        "{k} is in {v}.",
        _pairs("France=Europe; Germany=Europe; Italy=Europe; Spain=Europe; Norway=Europe; Poland=Europe; Greece=Europe; Japan=Asia; China=Asia; India=Asia;"
               "Thailand=Asia; Vietnam=Asia; Egypt=Africa; Kenya=Africa; Nigeria=Africa; Morocco=Africa; Ghana=Africa; Brazil=South America;"
               "Argentina=South America; Chile=South America; Peru=South America; Canada=North America; Mexico=North America; Cuba=North America"),
    ),
    Table(
        ("What is {k}?", "Tell me: what is {k}?", "Do you know what {k} is?", "What's {k}?", "Can you tell me what {k} is?", "Name {k}.",
         "Tell me what {k} is.", "I would like to know {k}."),
        "{v} is {k}.",
        _pairs("the largest planet=Jupiter; the smallest planet=Mercury; the red planet=Mars; the closest star to Earth=The Sun; the tallest mountain=Mount Everest;"
               "the longest river=The Nile; the largest ocean=The Pacific; the largest animal=The blue whale; the fastest land animal=The cheetah;"
               "the tallest animal=The giraffe; the largest country=Russia; the largest continent=Asia; the smallest continent=Australia;"
               "the largest desert=Antarctica; the hardest natural material=Diamond; the first month of the year=January;"
               "the last month of the year=December; the first day of the week=Monday; the planet closest to the sun=Mercury;"
               "the planet with rings=Saturn; the king of the jungle=The lion; the largest bird=The ostrich"),
    ),
    Table(
        ("How many {k}?", "Tell me how many {k}.", "Do you know how many {k}?", "Can you tell me how many {k}?", "Please say how many {k}.", "I ask you: how many {k}?"),
        "There are {v}.",
        _pairs("days are in a week=7 days in a week; months are in a year=12 months in a year; hours are in a day=24 hours in a day;"
               "minutes are in an hour=60 minutes in an hour; seconds are in a minute=60 seconds in a minute; days are in a year=365 days in a year;"
               "planets are in the solar system=8 planets in the solar system; continents are there=7 continents; oceans are there=5 oceans;"
               "letters are in the alphabet=26 letters in the alphabet; weeks are in a year=52 weeks in a year; years are in a century=100 years in a century;"
               "sides does a triangle have=3 sides in a triangle; sides does a square have=4 sides in a square; years are in a decade=10 years in a decade;"
               "fingers are on a hand=5 fingers on a hand; colors are in a rainbow=7 colors in a rainbow; eggs are in a dozen=12 eggs in a dozen"),
    ),
    Table(
        ("Who {k}?", "Tell me who {k}.", "Do you know who {k}?", "Can you tell me who {k}?", "Who was it that {k}?", "I want to know who {k}."),
        "{v} {k}.",
        _pairs("wrote Hamlet=William Shakespeare; painted the Mona Lisa=Leonardo da Vinci; discovered gravity=Isaac Newton; wrote Romeo and Juliet=William Shakespeare;"
               "developed the theory of relativity=Albert Einstein; was the first man on the moon=Neil Armstrong; discovered penicillin=Alexander Fleming;"
               "wrote Don Quixote=Miguel de Cervantes; wrote War and Peace=Leo Tolstoy; painted The Starry Night=Vincent van Gogh;"
               "invented the telephone=Alexander Graham Bell; wrote the Odyssey=Homer"),
    ),
)
