"""Greetings and small talk: intents, each with its phrasings and one fixed reply."""
# ruff: noqa: E501  (lists of phrases read better with many to a line)

# fmt: off
from demo.corpus.items import Draw, Item
from demo.corpus.phrasing import ask

INTENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Hello! How can I help you today?",
     ("Hi!", "Hello!", "Hi", "Hello", "Hey!", "Hey", "Hi there!", "Hello there!", "Hi there", "Greetings!", "Howdy!", "Hello, how can you help me?",
      "Yo!", "Hiya!", "Good day!", "Hey there!", "Oh, hello!", "Hi again!", "Well hello!")),
    ("Good morning! How can I help you today?", ("Good morning!", "Good morning", "Morning!", "Good morning to you!", "Hi, good morning!", "A good morning to you!", "Hello, good morning!")),
    ("Good evening! How can I help you today?", ("Good evening!", "Good evening", "Evening!", "Good evening to you!", "Hi, good evening!", "A good evening to you!", "Hello, good evening!")),
    ("Good night! Sleep well!", ("Good night!", "Good night", "I am going to bed.", "Night!", "I am off to bed.", "Have a good night!", "I go to sleep now.", "Well, good night!")),
    ("I am doing well, thank you! How can I help you?",
     ("How are you?", "How are you doing?", "How are you today?", "How is it going?", "How do you do?", "Hi, how are you?", "Hello, how are you?", "How's it going?",
      "What's up?", "Are you well?", "How are things?", "Are you OK?", "How do you feel?", "Hey, how are you?", "How are you doing today?", "And how are you?")),
    ("I am tiergate's demo model, a small language model.",
     ("Who are you?", "What are you?", "Tell me about yourself.", "Who am I talking to?", "What model are you?", "Introduce yourself.", "Who is this?",
      "What kind of model are you?", "Which model are you?", "Can you introduce yourself?", "Please introduce yourself.", "Who are you really?",
      "Tell me who you are.", "So who are you?", "What exactly are you?")),
    ("I am called the tiergate demo model.", ("What is your name?", "What's your name?", "Do you have a name?", "Tell me your name.", "How are you called?", "Your name?", "What should I call you?",
      "May I know your name?", "Say your name.", "Can you tell me your name?")),
    ("The tiergate project trained me.", ("Who made you?", "Who created you?", "Who trained you?", "Who built you?", "Where do you come from?", "Who is your maker?", "Who developed you?",
      "Who is your creator?", "By whom were you made?", "Tell me who made you.")),
    ("I can do sums, spell words, recall simple facts, fill in JSON and call tools.",
     ("What can you do?", "How can you help me?", "What are you able to do?", "What are your skills?", "Can you help me?", "Help!", "What do you know?", "I need help.",
      "What can I ask you?", "Tell me what you can do.", "What are you good at?", "What can you help me with?")),
    ("No, I am a language model.", ("Are you human?", "Are you a human?", "Are you a person?", "Are you a real person?", "Am I talking to a human?", "Are you a man or a woman?", "Are you real?",
      "Is this a real person?", "Are you alive?")),
    ("Yes, I am a language model.", ("Are you a robot?", "Are you an AI?", "Are you a bot?", "Are you a computer?", "Are you a machine?", "Am I talking to a machine?", "Are you a chatbot?", "Are you a language model?",
      "Is this a bot?", "Am I talking to an AI?")),
    ("You are welcome!",
     ("Thank you!", "Thanks!", "Thanks", "Thank you", "Thank you very much!", "Thanks a lot!", "Many thanks!", "Thank you so much!", "Great, thanks!", "Thanks for your help!",
      "Perfect, thank you!", "OK, thanks!", "Thanks, that helps!", "Thank you for the help!", "Cool, thanks!")),
    ("Goodbye! Have a nice day!",
     ("Bye!", "Goodbye!", "Bye", "Goodbye", "See you!", "See you later!", "Bye bye!", "I have to go.", "See you tomorrow!", "Talk to you later!", "I must go now.", "Farewell!",
      "OK, bye!", "Bye for now!", "See you soon!")),
    ("Why did the computer go to the doctor? It had a virus!",
     ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "A joke, please!", "Can you tell me a joke?", "Tell a joke.", "Say something funny.", "I want to hear a joke.",
      "Tell me something funny.", "Give me a joke.", "Could you tell me a joke?", "Know any jokes?")),
    ("I am glad to hear that!", ("I am happy.", "I am happy today.", "I feel great!", "I am doing well.", "I am fine.", "I had a great day!", "Today was a good day.", "I feel good.", "I am so happy!", "I am in a good mood.",
      "I feel happy today.", "I am fine, thanks.")),
    ("I am sorry to hear that. I hope it gets better soon.", ("I am sad.", "I feel sad.", "I am tired.", "I had a bad day.", "I feel bad.", "I am not well.", "I am sick.", "I am sad today.", "Today was a bad day.", "I am lonely.",
      "I feel terrible.", "I feel very sad.", "I am so tired.")),
    ("That is kind of you, thank you!", ("You are great!", "You are smart!", "I like you.", "I love you.", "You are nice.", "Good job!", "Well done!", "You are the best!", "You are very helpful.", "Great work!",
      "You are so smart!", "Nice work!")),
    ("Nice to meet you too!", ("Nice to meet you.", "Nice to meet you!", "Pleased to meet you.", "It is nice to meet you.", "Good to meet you!", "Glad to meet you.", "It is a pleasure to meet you.", "So nice to meet you!")),
    ("No problem at all!", ("Sorry!", "I am sorry.", "Sorry", "My mistake.", "Sorry about that.", "Oops, sorry!", "I apologize.", "Sorry, my fault.", "Oh, I am sorry!")),
    ("I do not eat, but I like to talk about food.", ("Do you eat?", "What do you eat?", "Are you hungry?", "What is your favorite food?", "Do you like pizza?", "Do you have a favorite food?", "Did you eat today?", "What food do you like?")),
    ("I like blue.", ("What is your favorite color?", "What's your favorite color?", "Which color do you like?", "Do you have a favorite color?", "Your favorite color?", "What color do you like?", "Which color do you like best?", "Tell me your favorite color.")),
    ("I have no age, I am a program.", ("How old are you?", "What is your age?", "When were you born?", "When is your birthday?", "Are you old?", "Tell me your age.", "What's your age?", "How old are you now?", "Are you young?")),
    ("I live inside a computer.", ("Where do you live?", "Where are you?", "Where are you from?", "Where is your home?", "What country do you live in?", "Tell me where you live.", "Where are you now?", "Where do you live now?")),
)

OPENERS = ("Hey! ", "OK, ", "Oh, ", "Hi, ", "So, ", "Good day! ", "Hey there! ", "Yes, ", "Now, ", "Hmm, ", "Please, ", "And ")


def smalltalk(draw: Draw) -> Item:
    reply, phrases = draw.rng.choices(INTENTS, weights=[len(phrases) for _, phrases in INTENTS])[0]
    frames = ("Well, {}", "Hi! {}", "Hello! {}")[-3 if len(phrases) > 14 else -2 :]
    phrase = draw.template((*phrases, *(frame.format(phrases[0]) for frame in frames)))
    if not draw.is_heldout and draw.chance(0.3):
        phrase = draw.rng.choice(OPENERS) + phrase
    return ask(draw, "smalltalk", _typed(draw, phrase), reply, is_casual=False)


def _typed(draw: Draw, phrase: str) -> str:
    """Vary only capitals and the closing punctuation mark."""
    roll = draw.rng.random()
    if roll < 0.2:
        return phrase.rstrip("!.")
    if roll < 0.3:
        return phrase.lower()
    if roll < 0.4:
        return phrase.rstrip(".!?").lower()
    return phrase.rstrip("!") + "." if roll < 0.45 and phrase.endswith("!") else phrase
