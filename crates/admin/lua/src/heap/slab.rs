//! A slab: items with handles, and a mark for each.

use std::cell::Cell;

/// Items by handle. A handle that was removed is used again.
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    marks: Vec<Cell<bool>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            marks: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(crate) fn add(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = Some(item);
            return id;
        }
        self.items.push(Some(item));
        self.marks.push(Cell::new(false));
        u32::try_from(self.items.len() - 1).expect("the memory limit allows less than 2^32 objects")
    }

    /// How many items there are.
    pub(crate) fn count(&self) -> usize {
        self.items.len() - self.free.len()
    }

    pub(crate) fn get(&self, id: u32) -> &T {
        self.items[id as usize]
            .as_ref()
            .expect("whatever has a handle keeps the item alive")
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut T {
        self.items[id as usize]
            .as_mut()
            .expect("whatever has a handle keeps the item alive")
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let items = (0..).zip(self.items.iter_mut());
        items.filter_map(|(id, item)| Some((id, item.as_mut()?)))
    }

    /// Marks an item; whether it was not marked before.
    pub(crate) fn mark(&self, id: u32) -> bool {
        !self.marks[id as usize].replace(true)
    }

    pub(crate) fn is_marked(&self, id: u32) -> bool {
        self.marks[id as usize].get()
    }

    /// The handles of items without a mark.
    pub(crate) fn unmarked(&self) -> Vec<u32> {
        let all = (0..).zip(self.items.iter().zip(&self.marks));
        all.filter(|(_, (item, mark))| item.is_some() && !mark.get())
            .map(|(id, _)| id)
            .collect()
    }

    /// Removes the items without a mark, and the marks of the others.
    pub(crate) fn sweep(&mut self, mut removed: impl FnMut(T)) {
        for (id, (item, mark)) in (0..).zip(self.items.iter_mut().zip(&self.marks)) {
            if mark.replace(false) {
                continue;
            }
            if let Some(item) = item.take() {
                self.free.push(id);
                removed(item);
            }
        }
    }
}
