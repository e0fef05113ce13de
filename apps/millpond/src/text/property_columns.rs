//! The columns of `zfs get` and `zpool get`.

use super::columns;
use crate::session::{Failure, Session};

/// A column of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Name,
    Property,
    Value,
    Received,
    Source,
}

impl Column {
    /// The columns that are shown by default.
    pub const DEFAULT: [Column; 4] = [Self::Name, Self::Property, Self::Value, Self::Source];
    /// The columns of `zfs get`. Pools receive no properties.
    pub const OF_DATASETS: [Column; 5] = [
        Self::Name,
        Self::Property,
        Self::Value,
        Self::Received,
        Self::Source,
    ];

    /// The word for it in `-o`, and in capitals its title.
    fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Property => "property",
            Self::Value => "value",
            Self::Received => "received",
            Self::Source => "source",
        }
    }
}

/// The columns that the argument of `-o` names, out of those that a command has.
pub fn columns_named(words: &str, known: &[Column]) -> Result<Vec<Column>, Failure> {
    let mut columns = Vec::new();
    for word in words.split(',') {
        match known.iter().find(|column| column.word() == word) {
            Some(column) => columns.push(*column),
            None if word == "all" => columns.extend(known),
            None => return Err(Failure::Usage(format!("invalid column name '{word}'"))),
        }
    }
    Ok(columns)
}

/// A table with a line for each property.
pub struct PropertyTable<'a> {
    pub columns: &'a [Column],
    /// For scripts: tabs between the cells, and no titles.
    pub is_script: bool,
    pub name_width: usize,
    pub property_width: usize,
    pub value_width: usize,
    pub received_width: usize,
}

impl PropertyTable<'_> {
    /// Prints the titles, except for scripts.
    pub fn print_titles(&self, session: &mut Session) -> Result<(), Failure> {
        match self.is_script {
            true => Ok(()),
            false => self.print(session, |column| column.word().to_ascii_uppercase()),
        }
    }

    /// Prints a line.
    pub fn print(
        &self,
        session: &mut Session,
        cell: impl Fn(Column) -> String,
    ) -> Result<(), Failure> {
        let cells: Vec<String> = self.columns.iter().map(|column| cell(*column)).collect();
        let line = match self.is_script {
            true => cells.join("\t"),
            false => {
                let widths = self.columns.iter().map(|column| self.width(*column));
                columns::row(&cells, &widths.collect::<Vec<_>>(), |_| false)
            }
        };
        writeln!(session.out, "{line}")?;
        Ok(())
    }

    fn width(&self, column: Column) -> usize {
        match column {
            Column::Name => self.name_width,
            Column::Property => self.property_width,
            Column::Value => self.value_width,
            Column::Received => self.received_width,
            Column::Source if self.name_width > 4 => self.name_width + 14,
            Column::Source => 6,
        }
    }
}

/// The width of the longest of these texts, and of the title.
pub fn widest<'a>(texts: impl Iterator<Item = &'a str>, least: usize) -> usize {
    texts.map(str::len).fold(least, usize::max)
}
