from tests.synthetic import no_waiting_for_the_disk, pictures_of_a_dot, seeds_that_do_not_differ

__all__ = ["no_waiting_for_the_disk", "pictures_of_a_dot", "seeds_that_do_not_differ"]
