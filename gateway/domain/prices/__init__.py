"""What tokens cost: the price book and its versions."""
