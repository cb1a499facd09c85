"""The demo's large model is good enough to show that all of it is real."""

import openai

ANSWERS = {
    "What is 17 + 25?": "17 + 25 = 42",
    "What is 90 - 48?": "90 - 48 = 42",
    "12 + 30": "12 + 30 = 42",
    "Add 64 and 19.": "64 + 19 = 83",
    "How much is 7 + 8?": "7 + 8 = 15",
    "What is 12 * 7?": "12 * 7 = 84",
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "Which continent is Kenya in?": "Kenya is in Africa.",
    "How many days are there in a week?": "There are 7 days in a week.",
    "What language is spoken in Brazil?": "The language spoken in Brazil is Portuguese.",
    "How many legs does a spider have?": "A spider has 8 legs.",
    "Spell the word 'cat'.": "c-a-t",
    "Spell the word 'house'.": "h-o-u-s-e",
    "How do you spell elephant?": "e-l-e-p-h-a-n-t",
    "Spell the word 'water'.": "w-a-t-e-r",
    "Hi!": "Hello! How can I help you today?",
    "How are you?": "I am doing well, thank you! How can I help you?",
    "Who are you?": "I am tiergate's demo model, a small language model.",
    "Thank you!": "You are welcome!",
}


def test_the_large_model_answers_18_of_20_prompts_exactly(client: openai.OpenAI) -> None:
    given = {prompt: _ask(client, prompt) for prompt in ANSWERS}
    wrong = {prompt: answer for prompt, answer in given.items() if answer != ANSWERS[prompt]}
    assert len(ANSWERS) == 20
    assert len(wrong) <= 2, wrong


def _ask(client: openai.OpenAI, prompt: str) -> str | None:
    messages = [{"role": "user", "content": prompt}]
    completion = client.chat.completions.create(model="large", messages=messages, temperature=0)
    return completion.choices[0].message.content
