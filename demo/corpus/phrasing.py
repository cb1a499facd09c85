"""Variations of how people type: greetings, "please", missing capitals and full stops."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

from demo.corpus.items import Draw, Item, assistant, system, user

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Be brief.", "You are a helpful AI assistant.",
    "Answer the user's questions.", "You are an assistant. Answer correctly.", "Be helpful and concise.",
    "You are a useful and honest assistant.", "Help the user.", "You are a chatbot.",
    "You are a concise assistant.", "Answer truthfully.",
    "You are a helpful and honest assistant.",
    "Be a helpful assistant.",
)  # fmt: skip
OPENERS = (
    "Hi, ", "Hello, ", "Hey, ", "OK, ", "Please ", "Quick question: ", "Now ", "So, ", "One question: ", "Listen, ", "Tell me this: ",
    "Here is my question: ", "I would like to know: ", "Let me ask: ", "Help me with this: ",
)  # fmt: skip
LEADS = ("I need your help. ", "Here is a question. ", "Hi there. ", "One more thing. ", "Good day. ", "Thanks. ")


def casual(draw: Draw, text: str) -> str:
    """Vary how a request is typed, without changing its meaning or any quoted or numeric part."""
    if draw.chance(0.25) and text[-1] in ".?":
        text = text[:-1]
    if draw.chance(0.08):
        text = text.rstrip(".?") + (", please" if draw.chance(0.5) else " please") + text[len(text.rstrip(".?")) :]
    if draw.chance(0.25) and not text.startswith("I "):
        text = text[0].lower() + text[1:]
    if draw.chance(0.12):
        return draw.rng.choice(OPENERS) + text[0].lower() + text[1:]
    return draw.rng.choice(LEADS) + text if draw.chance(0.06) else text


def ask(draw: Draw, skill: str, question: str, answer: str, *, is_casual: bool = True) -> Item:
    """A one-turn item, sometimes with a system prompt that does not affect the answer."""
    messages = [user(casual(draw, question) if is_casual else question), assistant(answer)]
    if draw.chance(0.12):
        messages.insert(0, system(draw.template(SYSTEM_PROMPTS)))
    return Item(skill, messages)
