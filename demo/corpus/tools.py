"""Calling one of the offered tools, and answering from its result."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo.corpus.items import Draw, Item, Message, assistant, user
from demo.corpus.names import CITIES, FOODS, THINGS, draw_name
from demo.corpus.phrasing import casual

Values = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of tool: its possible names, its parameters (each with possible names and a JSON type), requests for it,
    and makers of argument values and of a result, with the reply to the result."""

    names: tuple[str, ...]
    description: str
    parameters: tuple[tuple[tuple[str, ...], str], ...]
    requests: tuple[str, ...]
    values: Callable[[Draw], tuple[Any, ...]]
    result: Callable[[Draw], Values]
    reply: str


KINDS = (
    Kind(("get_weather", "weather", "current_weather", "weather_lookup", "fetch_weather"), "Get the weather in a city", ((("city", "location", "place", "town"), "string"),),
         ("What is the weather in {0}?", "How is the weather in {0}?", "What's the weather like in {0}?", "Weather in {0}?", "Is it sunny in {0}?", "Tell me the weather in {0}.",
          "Will I need a coat in {0}?", "Does it rain in {0}?", "Check the weather in {0}.", "How warm is it in {0}?", "What is the weather like in {0} today?", "I want to know the weather in {0}."),
         lambda d: (d.entity(CITIES),), lambda d: {"temperature": d.rng.randint(-5, 38), "sky": d.rng.choice(("sunny", "cloudy", "rainy", "windy"))},
         "It is {sky} in {0} with {temperature} degrees."),
    Kind(("get_time", "current_time", "local_time", "time_in_city"), "Get the local time in a city", ((("city", "location", "place"), "string"),),
         ("What time is it in {0}?", "What is the time in {0}?", "Time in {0}?", "Tell me the time in {0}.", "How late is it in {0}?", "What's the local time in {0}?",
          "Can you check the time in {0}?", "Do you know what time it is in {0}?"),
         lambda d: (d.entity(CITIES),), lambda d: {"time": f"{d.rng.randint(0, 23):02d}:{d.rng.randint(0, 59):02d}"}, "It is {time} in {0}."),
    Kind(("send_email", "send_mail", "email", "send_message"), "Send a message to a person", ((("to", "recipient", "person"), "string"), (("text", "body", "message"), "string")),
         ("Send {0} a message: {1}", "Write to {0}: {1}", "Email {0} and say: {1}", "Tell {0} by mail: {1}", "Message {0}: {1}", "Send a mail to {0} with the text: {1}",
          "Let {0} know: {1}", "Please send {0} this: {1}"),
         lambda d: (draw_name(d), d.rng.choice(("I am late", "Lunch at noon", "See you tomorrow", "The meeting is moved", "Call me back", "I will be there soon", "Happy birthday"))),
         lambda d: {"status": "sent"}, "I sent your message to {0}."),
    Kind(("get_price", "price_lookup", "product_price", "find_price"), "Look up the price of a product", ((("product", "item", "name"), "string"),),
         ("How much is the {0}?", "What does the {0} cost?", "What is the price of the {0}?", "How much does the {0} cost?", "Price of the {0}?", "Find the price of the {0}.",
          "Look up what a {0} costs.", "What do I pay for the {0}?"),
         lambda d: (d.rng.choice(THINGS),), lambda d: {"price": d.rng.randint(5, 500)}, "The {0} costs ${price}."),
    Kind(("set_timer", "start_timer", "timer", "create_timer"), "Start a timer", ((("minutes", "duration", "length"), "integer"),),
         ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.", "Timer for {0} minutes, please.", "Wake me in {0} minutes.", "Remind me in {0} minutes.",
          "I need a timer for {0} minutes.", "Give me a {0} minute timer.", "Can you set a timer for {0} minutes?"),
         lambda d: (d.rng.randint(2, 59),), lambda d: {"status": "started"}, "Your timer for {0} minutes is running."),
    Kind(("book_table", "reserve_table", "make_reservation"), "Reserve a table", ((("people", "guests", "seats"), "integer"), (("time", "hour", "at"), "string")),
         ("Book a table for {0} at {1}.", "Reserve a table for {0} people at {1}.", "I want a table for {0} at {1}.", "A table for {0} at {1}, please.", "Get us a table for {0} people at {1}.",
          "We are {0} and want to eat at {1}.", "Can you book a table for {0} people at {1}?", "Make a reservation for {0} at {1}."),
         lambda d: (d.rng.randint(2, 12), f"{d.rng.randint(11, 22)}:{d.rng.choice(('00', '15', '30', '45'))}"), lambda d: {"status": "booked"}, "Your table for {0} at {1} is booked."),
    Kind(("find_order", "order_status", "track_order", "lookup_order"), "Look up an order", ((("order_id", "order", "number", "id"), "integer"),),
         ("Where is order {0}?", "What is the status of order {0}?", "Track order {0}.", "Has order {0} been shipped?", "Check order {0}.", "I want to know about order {0}.",
          "Find my order {0}.", "Can you look up order number {0}?"),
         lambda d: (d.rng.randint(100, 9999),), lambda d: {"state": d.rng.choice(("shipped", "delivered", "packed", "delayed"))}, "Order {0} is {state}."),
    Kind(("find_recipe", "search_recipe", "recipe", "get_recipe"), "Find a recipe", ((("dish", "food", "meal"), "string"),),
         ("Find a recipe for {0}.", "How do I cook {0}?", "I want to cook {0}.", "Give me a recipe for {0}.", "Recipe for {0}?", "Look for a recipe with {0}.",
          "What do I need to make {0}?", "Can you find a recipe for {0}?"),
         lambda d: (d.rng.choice(FOODS),), lambda d: {"title": d.rng.choice(("easy", "fast", "classic", "spicy")), "minutes": d.rng.randint(10, 90)},
         "I found a recipe for {0}: {title}, {minutes} minutes."),
    Kind(("search", "web_search", "search_web", "find"), "Search the web", ((("query", "q", "text"), "string"),),
         ("Search for {0}.", "Search the web for {0}.", "Look up {0} on the web.", "Find pages about {0}.", "Do a web search for {0}.", "Google {0}.", "Search online for {0}.", "Can you search for {0}?"),
         lambda d: (f"{d.rng.choice(('cheap', 'new', 'best', 'small', 'old'))} {d.rng.choice(THINGS)}s",), lambda d: {"hits": d.rng.randint(2, 99)}, "I found {hits} pages about {0}."),
    Kind(("convert_currency", "exchange", "currency_converter"), "Convert an amount of money", ((("amount", "value", "sum"), "number"), (("from", "source"), "string"), (("to", "target"), "string")),
         ("Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "What are {0} {1} in {2}?", "Change {0} {1} into {2}.", "Exchange {0} {1} for {2}.", "{0} {1} in {2}, please.",
          "I have {0} {1} and need {2}.", "What do I get in {2} for {0} {1}?"),
         lambda d: (d.rng.randint(2, 500), *d.rng.sample(("USD", "EUR", "GBP", "JPY", "CHF", "CAD"), 2)), lambda d: {"result": d.rng.randint(2, 900)}, "{0} {1} is {result} {2}."),
)  # fmt: skip


def _offer(draw: Draw, kind: Kind) -> tuple[dict[str, Any], tuple[str, ...]]:
    """An OpenAI tool definition under one of the kind's names, and the parameter names it uses."""
    names = tuple(draw.rng.choice(options) for options, _ in kind.parameters)
    properties = {name: {"type": json_type} for name, (_, json_type) in zip(names, kind.parameters, strict=True)}
    parameters = {"type": "object", "properties": properties, "required": list(names)}
    function = {"name": draw.rng.choice(kind.names), "description": kind.description, "parameters": parameters}
    return {"type": "function", "function": function}, names


def _called(draw: Draw) -> tuple[Kind, tuple[Any, ...], list[dict[str, Any]], list[Message]]:
    kinds = draw.rng.sample(KINDS, draw.rng.choices((1, 2, 3, 4), (35, 40, 20, 5))[0])
    kind = draw.rng.choice(kinds)
    values = draw.until_owned(lambda: kind.values(draw)) if len(kind.parameters) > 1 else kind.values(draw)
    tools, call = [], {}
    for offered in kinds:
        tool, names = _offer(draw, offered)
        tools.append(tool)
        if offered is kind:
            call = {"name": tool["function"]["name"], "arguments": dict(zip(names, values, strict=True))}
    requests = (*kind.requests, f"Please help me: {kind.requests[0]}", f"I have a question. {kind.requests[0]}")
    request = casual(draw, draw.template(requests).format(*values))
    reply = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    return kind, values, tools, [user(request), reply]


def tool_call(draw: Draw) -> Item:
    _, _, tools, messages = _called(draw)
    return Item("tool_call", messages, tools)


def tool_result(draw: Draw) -> Item:
    kind, values, tools, messages = _called(draw)
    result = kind.result(draw)
    messages += [{"role": "tool", "content": json.dumps(result)}, assistant(kind.reply.format(*values, **result))]
    return Item("tool_result", messages, tools)
