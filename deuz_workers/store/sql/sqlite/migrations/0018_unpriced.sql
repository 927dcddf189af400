-- Estimates from before it was kept whether a price was known: those without money had none.
update reservation set priced = 0 where model = '' and micros = 0;
