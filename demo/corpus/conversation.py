"""Several turns: remembering what the user said, obeying a system prompt, and long conversations."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

from collections.abc import Sequence

from demo.corpus.items import Draw, Item, Message, Skill, assistant, system, user
from demo.corpus.names import CITIES, COLORS, FOODS, JOBS, NAMES, PETS, draw_name
from demo.corpus.phrasing import casual

# (options, statements, reply, questions, answer)
MEMORIES: tuple[tuple[Sequence[str], tuple[str, ...], str, tuple[str, ...], str], ...] = (
    (NAMES, ("My name is {v}.", "I am {v}.", "Hi, I am {v}.", "Hello, my name is {v}.", "I'm {v}.", "You can call me {v}.", "My name is {v}, nice to meet you.", "Call me {v}.", "People call me {v}."),
     "Nice to meet you, {v}!", ("What is my name?", "What's my name?", "Do you know my name?", "Who am I?", "Do you remember my name?", "Tell me my name.", "What did I say my name is?", "Can you recall my name?"), "Your name is {v}."),
    (CITIES, ("I live in {v}.", "I am from {v}.", "My home is {v}.", "I come from {v}.", "My city is {v}.", "I moved to {v}.", "Home for me is {v}.", "I have my home in {v}."),
     "{v} is a nice place!", ("Where do I live?", "Which city do I live in?", "Where is my home?", "Do you know where I live?", "What city am I from?", "Do you remember where I live?", "Tell me where I live."), "You live in {v}."),
    (COLORS, ("My favorite color is {v}.", "I like the color {v}.", "I love {v}.", "The color I like most is {v}.", "I prefer {v}.", "My color is {v}.", "The best color is {v}."),
     "{v} is a beautiful color!", ("What is my favorite color?", "Which color do I like?", "What color do I like?", "Do you know my favorite color?", "Tell me my favorite color.", "Do you remember my favorite color?"), "Your favorite color is {v}."),
    (FOODS, ("I like to eat {v}.", "My favorite food is {v}.", "I love eating {v}.", "I eat {v} every day.", "The food I like most is {v}.", "I always eat {v}.", "I could eat {v} all day."),
     "{v} sounds tasty!", ("What do I like to eat?", "What is my favorite food?", "Which food do I like?", "Do you know what I like to eat?", "Tell me my favorite food.", "Do you remember what I like to eat?"), "You like to eat {v}."),
    (PETS, ("I have a {v}.", "My pet is a {v}.", "I own a {v}.", "There is a {v} in my house.", "I got a {v} as a pet.", "I bought a {v}.", "A {v} lives with me."),
     "A {v} is a lovely pet!", ("What pet do I have?", "Which pet do I have?", "What is my pet?", "Do you know what pet I have?", "Do you remember my pet?", "Tell me what pet I have."), "You have a {v}."),
    (JOBS, ("I work as a {v}.", "My job is {v}.", "I am a {v} by trade.", "I have a job as a {v}.", "I earn my money as a {v}.", "I am employed as a {v}.", "I make a living as a {v}."),
     "That is an interesting job!", ("What is my job?", "What do I do for work?", "What's my job?", "Do you know my job?", "Do you remember my job?", "Tell me what my job is."), "You work as a {v}."),
)  # fmt: skip


def _wrapped(phrases: Sequence[str], *frames: str) -> tuple[str, ...]:
    """The phrases, followed by framed variants of the first one. Held-out phrases are taken from the end."""
    return (*phrases, *(frame.replace("{}", phrases[0]) for frame in frames))


class Conversation:
    """Draws conversations whose other turns come from the one-turn skills in `fillers`."""

    def __init__(self, fillers: Sequence[Skill]) -> None:
        self.fillers = fillers

    def memory(self, draw: Draw) -> Item:
        """One or two statements, up to two other turns, then a question about one of the statements."""
        return Item("memory", self._remembered(draw, num_between=draw.rng.choice((0, 0, 1, 1, 2))))

    def long_conversation(self, draw: Draw) -> Item:
        """Like `memory`, but with 12 to 30 other turns in between: several hundred to about 1,200 tokens."""
        return Item("long_conversation", self._remembered(draw, num_between=draw.rng.randint(12, 30)))

    def _remembered(self, draw: Draw, *, num_between: int) -> list[Message]:
        subjects = draw.rng.sample(MEMORIES, draw.rng.choice((1, 2, 2)))
        messages: list[Message] = []
        told: list[tuple[tuple[str, ...], str]] = []
        for options, statements, reply, questions, answer in subjects:
            value = draw_name(draw) if options is NAMES else draw.entity(options)
            said = reply.format(v=value)
            messages += [
                user(
                    casual(
                        draw,
                        draw.template(_wrapped(statements, "You should know: {}", "Please remember: {}")).format(
                            v=value
                        ),
                    )
                ),
                assistant(said[0].upper() + said[1:]),
            ]
            told.append((questions, answer.format(v=value)))
        for _ in range(num_between):
            messages += self._other_turn(draw)
        questions, answer = draw.rng.choice(told)
        return [
            *messages,
            user(casual(draw, draw.template(_wrapped(questions, "Please tell me: {}", "Now tell me: {}")))),
            assistant(answer),
        ]

    def _other_turn(self, draw: Draw) -> list[Message]:
        turn = draw.rng.choice(self.fillers)(draw).messages
        return [message for message in turn if message["role"] != "system"]

    def system_prompt(self, draw: Draw) -> Item:
        """A rule or a persona in the system prompt that changes the answer."""
        turn = self._other_turn(draw)
        rule, answer = draw.rng.choice((_upper, _lower, _ends_with, _begins_with, _persona, _persona))(draw, turn)
        return Item("system_prompt", [system(rule), turn[0], assistant(answer)])


UPPER = (
    "Answer in upper case.",
    "Always answer in capital letters.",
    "Write everything in upper case.",
    "Use capital letters only.",
    "Reply in upper case.",
    "Answer only in capital letters.",
    "Please write in upper case.",
    "Always write in capital letters.",
    "Always answer in upper case.",
)
LOWER = (
    "Answer in lower case.",
    "Always answer in lower case.",
    "Write everything in lower case.",
    "Use small letters only.",
    "Reply in lower case.",
    "Answer only in lower case.",
    "Please write in lower case.",
    "Always write in small letters.",
    "Write your answer in lower case.",
)
ENDS = (
    "End every answer with '{v}'.",
    "Always end with '{v}'.",
    "Finish each answer with '{v}'.",
    "Put '{v}' at the end of your answer.",
    "Your answers end with '{v}'.",
    "Always finish with '{v}'.",
    "Close every answer with '{v}'.",
    "End each answer with '{v}'.",
    "Always put '{v}' at the end.",
)
BEGINS = (
    "Begin every answer with '{v}'.",
    "Always start with '{v}'.",
    "Start each answer with '{v}'.",
    "Put '{v}' before your answer.",
    "Your answers begin with '{v}'.",
    "Always begin with '{v}'.",
    "Open every answer with '{v}'.",
    "Begin each answer with '{v}'.",
    "Always begin your answer with '{v}'.",
)
CLOSINGS = (
    "Thank you!",
    "Good luck!",
    "Over and out.",
    "Have fun!",
    "That is all.",
    "Take care!",
    "The end.",
    "Cheers!",
    "Bye!",
    "Any questions?",
)
OPENINGS = (
    "Sure!",
    "Of course!",
    "Yes, sir!",
    "Here you go:",
    "Certainly!",
    "OK!",
    "Well,",
    "Listen:",
    "My friend,",
    "Answer:",
)
PERSONAS = (
    "You are {n}, a {j}.",
    "Your name is {n} and you are a {j}.",
    "Act as {n}, a {j}.",
    "You play {n}, a {j}.",
    "You are a {j} named {n}.",
    "Pretend to be {n}, a {j}.",
    "You are a {j} called {n}.",
    "You are a {j} and your name is {n}.",
    "Act as a {j} named {n}.",
)
WHO = (
    "Who are you?",
    "What is your name?",
    "Introduce yourself.",
    "Tell me about yourself.",
    "What are you?",
    "Who am I talking to?",
    "Tell me who you are.",
    "Please introduce yourself.",
    "Can you tell me who you are?",
)


def _upper(draw: Draw, turn: list[Message]) -> tuple[str, str]:
    return draw.template(UPPER), turn[1]["content"].upper()


def _lower(draw: Draw, turn: list[Message]) -> tuple[str, str]:
    return draw.template(LOWER), turn[1]["content"].lower()


def _ends_with(draw: Draw, turn: list[Message]) -> tuple[str, str]:
    closing = draw.rng.choice(CLOSINGS)
    return draw.template(ENDS).format(v=closing), f"{turn[1]['content']} {closing}"


def _begins_with(draw: Draw, turn: list[Message]) -> tuple[str, str]:
    opening = draw.rng.choice(OPENINGS)
    return draw.template(BEGINS).format(v=opening), f"{opening} {turn[1]['content']}"


def _persona(draw: Draw, turn: list[Message]) -> tuple[str, str]:
    """A persona says who it is when asked, and answers any other question normally."""
    name, job = draw_name(draw), draw.rng.choice(JOBS)
    if draw.chance(0.7):
        turn[0] = user(casual(draw, draw.template(WHO)))
        turn[1] = assistant(f"I am {name}, a {job}.")
    return draw.template(PERSONAS).format(n=name, j=job), turn[1]["content"]
